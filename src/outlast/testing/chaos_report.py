"""The report of a chaos campaign: two tables for people, one document for machines.

May import: the verdict, rich.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from outlast.testing.chaos_verdict import Death, Verdict


def print_report(verdict: Verdict, console: Console | None = None) -> None:
    """Tables by kind and by state, then the sums and every violation."""
    out = console or Console()
    out.print(_table("kills by kind", verdict.deaths, by=_kind))
    out.print(_table("kills by the last thing that happened", verdict.deaths, by=_state))
    out.print(_summary(verdict))
    for text in verdict.violations:
        out.print(f"[red]violation[/red]: {text}", highlight=False)
    if len(verdict.deaths) < verdict.campaign.kills:
        out.print(f"asked for {verdict.campaign.kills} kills, had {len(verdict.deaths)}")


def report_json(verdict: Verdict) -> str:
    """One JSON document with the sums, every death, and every violation."""
    return json.dumps(
        {
            "ok": verdict.ok,
            "kills": len(verdict.deaths),
            "lives": verdict.lives,
            "lineages": verdict.finished,
            "seed": verdict.campaign.seed,
            "seconds": round(verdict.seconds, 1),
            "skipped": verdict.skipped,
            "repeated": verdict.repeated,
            "trained": verdict.trained,
            "siblings_reused": verdict.siblings_reused,
            "tokens_reused": verdict.tokens_reused,
            "prefix_tokens_reused": verdict.prefix_tokens_reused,
            "siblings_lost": sum(d.loss.siblings_lost for d in verdict.deaths),
            "tokens_lost": sum(d.loss.tokens_lost for d in verdict.deaths),
            "restart_s": _quantiles(verdict.restarts_s),
            "violations": verdict.violations,
            "deaths": [_death(death) for death in verdict.deaths],
        },
        indent=2,
    )


def _death(death: Death) -> dict[str, object]:
    return {
        "lineage": death.lineage,
        "life": death.life,
        "kind": _kind(death),
        "failpoint": death.ended.blow and death.ended.blow.failpoint,
        "exit": death.ended.returncode,
        "state": death.ended.state,
        "first_dispatch_s": death.ended.first_dispatch_s,
        "siblings_reused": death.loss.siblings_reused,
        "tokens_reused": death.loss.tokens_reused,
        "siblings_lost": death.loss.siblings_lost,
        "tokens_lost": death.loss.tokens_lost,
    }


def _kind(death: Death) -> str:
    return str(death.ended.blow.kind) if death.ended.blow else "undisturbed"


def _state(death: Death) -> str:
    return death.ended.state


def _table(title: str, deaths: Sequence[Death], *, by: Callable[[Death], str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("kind" if by is _kind else "state", no_wrap=True)
    for name in ("kills", "siblings kept", "lost", "tokens kept", "lost", "s to first dispatch"):
        table.add_column(name, justify="right")
    groups: dict[str, list[Death]] = defaultdict(list)
    for death in deaths:
        groups[by(death)].append(death)
    for name, held in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        table.add_row(name, *_cells(held))
    table.add_section()
    table.add_row("all", *_cells(deaths))
    return table


def _cells(deaths: Sequence[Death]) -> tuple[str, ...]:
    starts = [d.ended.first_dispatch_s for d in deaths if d.ended.first_dispatch_s is not None]
    return (
        str(len(deaths)),
        _sum(d.loss.siblings_reused for d in deaths),
        _sum(d.loss.siblings_lost for d in deaths),
        _sum(d.loss.tokens_reused for d in deaths),
        _sum(d.loss.tokens_lost for d in deaths),
        f"{statistics.median(starts):.1f}" if starts else "-",
    )


def _sum(values: Iterable[int]) -> str:
    return f"{sum(values):,}"


def _summary(verdict: Verdict) -> str:
    restart = _quantiles(verdict.restarts_s)
    shown = f"p50 {restart['p50']:.2f} s, worst {restart['max']:.2f} s" if restart else "-"
    return (
        f"{len(verdict.deaths)} kills in {verdict.lives} lives of {verdict.finished} runs, "
        f"{verdict.seconds:.0f} s, seed {verdict.campaign.seed}: "
        f"{verdict.trained:,} groups trained, {verdict.skipped} skipped, "
        f"{verdict.repeated} repeated, {len(verdict.violations)} violations. Reused: "
        f"{verdict.siblings_reused:,} siblings with {verdict.tokens_reused:,} tokens, and "
        f"{verdict.prefix_tokens_reused:,} tokens of unfinished ones. "
        f"Lock to first dispatch after a restart: {shown}"
    )


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"p50": statistics.median(values), "max": max(values)}
