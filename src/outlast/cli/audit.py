"""`outlast audit`: exactly-once over all incarnations, judged from files.

May import: `durable`, `telemetry`, `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlast.cli.exits import Exit

if TYPE_CHECKING:
    from outlast.durable.audit import AuditReport, LifeAudit
    from outlast.durable.lengths import LengthAudit
    from outlast.telemetry.events import Restored

SHOWN_MAX = 20


def audit(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Prove that every prompt drawn was trained exactly once, dropped, or is outstanding."""
    from outlast.cli.output import FILES, open_run, print_json
    from outlast.durable.audit import audit_run

    run_dir, _ = open_run(run, verify="names")
    report = audit_run(FILES, run_dir)
    reused = _restored(run, report)
    if as_json:
        print_json(_document(report, reused))
    else:
        typer.echo(_text(report, reused))
    if not report.ok:
        raise typer.Exit(Exit.INVARIANT)


def _restored(run: Path, report: AuditReport) -> dict[int, Restored]:
    """What each life reported to have reused: from telemetry, so only where that was kept."""
    from outlast.telemetry.summary import read_start

    found = {life.incarnation: read_start(run, life.incarnation) for life in report.incarnations}
    return {number: event for number, event in found.items() if event is not None}


def _document(report: AuditReport, reused: dict[int, Restored]) -> dict[str, object]:
    document: dict[str, object] = {"ok": report.ok, **msgspec.to_builtins(report)}
    document["incarnations"] = [
        {**msgspec.to_builtins(life), **_reuse(reused.get(life.incarnation))}
        for life in report.incarnations
    ]
    return document


def _reuse(event: Restored | None) -> dict[str, int | None]:
    return {
        "groups_reused": None if event is None else event.groups_reused,
        "siblings_reused": None if event is None else event.siblings_reused,
        "tokens_reused": None if event is None else event.tokens_reused,
    }


def _text(report: AuditReport, reused: dict[int, Restored]) -> str:
    from outlast.cli import format as fmt
    from outlast.cli.output import columns

    if report.cut is None and report.ok:
        return "nothing was ever published here: there is nothing to account for"
    verdict = "exactly once" if report.ok else f"VIOLATED: {report.violations_total} findings"
    dropped = ", ".join(f"{n} {reason}" for reason, n in report.dropped_by_reason.items())
    rows = [
        ("judged", f"{report.cut or 'nothing'}, version {report.trainer_version} of {report.run}"),
        ("drawn", f"{report.drawn:,} prompts"),
        ("trained", f"{report.trained:,}"),
        ("dropped", f"{report.dropped:,}" + (f" ({dropped})" if dropped else "")),
        ("outstanding", f"{report.outstanding:,}"),
        ("skipped", f"{report.skipped:,}"),
        ("repeated", f"{report.repeated:,}"),
    ]
    header = ("life", "restored", "steps", "trained", "dropped", "replayed", "reused", "ended")
    lives = [_row(life, reused.get(life.incarnation)) for life in report.incarnations]
    parts = [verdict, fmt.table(rows), "", *_lengths(report.lengths), columns(header, lives)]
    parts += [f"passed over {name}: {reason}" for name, reason in report.rejected]
    shown = report.violations[:SHOWN_MAX]
    parts += [f"  - {line}" for line in shown]
    left = report.violations_total - len(shown)
    return "\n".join(parts + ([f"  - and {left} more"] if left else []))


def _lengths(lengths: LengthAudit) -> list[str]:
    """Lengths of trained responses against all that were finished."""
    from outlast.cli.output import columns

    found = {
        "trained": lengths.trained,
        "masked": lengths.masked,
        "dropped": lengths.dropped,
        "outstanding": lengths.outstanding,
    }
    rows = [
        (
            name,
            f"{of.responses:,}",
            *(f"{value:,.1f}" for value in (of.mean, of.p50, of.p90)),
            f"{of.longest:,}",
        )
        for name, of in found.items()
        if of.responses
    ]
    if not rows:
        return []
    header = ("finished responses", "count", "mean tokens", "p50", "p90", "longest")
    return [columns(header, rows), f"length bias: {_bias(lengths)}", ""]


def _bias(lengths: LengthAudit) -> str:
    late = f"; {lengths.unfinished:,} dropped before they finished" if lengths.unfinished else ""
    left_out = lengths.masked.responses + lengths.dropped.responses
    if lengths.ratio is None:
        return f"nothing was trained yet{late}"
    if not left_out:
        return f"none, every finished response was trained{late}"
    if lengths.z is None:
        return f"{left_out:,} responses were not trained, too few groups to judge{late}"
    means = (
        f"trained responses have {lengths.ratio:.3f} of the mean length of all (z {lengths.z:+.1f})"
    )
    if not lengths.biased:
        return f"not shown, {means}{late}"
    kind = "short" if lengths.z < 0 else "long"
    return f"WARNING, {kind} responses are preferred: {means}{late}"


def _row(life: LifeAudit, event: Restored | None) -> tuple[str, ...]:
    reused = "" if event is None else f"{event.siblings_reused} responses"
    return (
        str(life.incarnation),
        "-" if life.restored_from is None else f"cut {life.restored_from}",
        str(life.steps),
        str(life.trained),
        str(life.dropped),
        str(life.replayed),
        reused or "-",
        (life.ended or "no end record") + ("" if life.counts else " (void)"),
    )
