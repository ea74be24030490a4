"""The report of a chaos campaign: two tables for people, one document for machines.

May import: the verdict, `cli.output`, rich.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console

from outlast.cli.output import columns
from outlast.testing.chaos_verdict import Death, Verdict

COLUMNS = (
    "deaths", "siblings kept", "lost", "tokens kept", "lost", "s to request", "s to response"
)  # fmt: skip
"""Seconds are medians, from exec to the first request sent, and to the first response finished."""


def print_report(verdict: Verdict, console: Console | None = None) -> None:
    """Tables by kind and by phase, then the sums, every violation and the verdict."""
    out = console or Console()
    for name, by in (("by kind", _kind), ("by phase", _phase)):
        out.print(_table(name, verdict.deaths, by=by), highlight=False, soft_wrap=True)
        out.print()
    out.print(_summary(verdict), highlight=False)
    for text in verdict.untested:
        out.print(f"[yellow]{text}[/yellow]", highlight=False)
    for text in verdict.orphans:
        out.print(f"[yellow]outlived its run[/yellow]: {text}", highlight=False)
    for text in verdict.violations:
        out.print(f"[red]violation[/red]: {text}", highlight=False)
    if not verdict.complete:
        asked = verdict.campaign
        out.print(
            f"asked for {asked.kills} kills and {asked.power_cuts} power cuts, "
            f"had {verdict.kills} and {verdict.cuts}"
        )
    out.print(f"audit: {_audit(verdict)}", highlight=False)


def report_json(verdict: Verdict) -> str:
    """One JSON document with the sums, every death, and every violation."""
    return json.dumps(
        {
            "ok": verdict.ok,
            "kills": verdict.kills,
            "power_cuts": verdict.cuts,
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
            "untested": verdict.untested,
            "orphans": verdict.orphans,
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
        "phase": death.ended.phase,
        "state": death.ended.state,
        "copy_s": death.ended.cut and death.ended.cut.seconds,
        "first_dispatch_s": death.ended.first_dispatch_s,
        "first_response_s": death.ended.first_response_s,
        "siblings_reused": death.loss.siblings_reused,
        "tokens_reused": death.loss.tokens_reused,
        "siblings_lost": death.loss.siblings_lost,
        "tokens_lost": death.loss.tokens_lost,
    }


def _kind(death: Death) -> str:
    return str(death.ended.blow.kind) if death.ended.blow else "undisturbed"


def _phase(death: Death) -> str:
    return str(death.ended.phase)


def _audit(verdict: Verdict) -> str:
    if verdict.violations:
        return f"{len(verdict.violations)} violations"
    return (
        f"no violation in {verdict.audited} runs: {verdict.trained:,} groups "
        f"trained, {verdict.skipped} skipped, {verdict.repeated} repeated"
    )


def _table(first: str, deaths: Sequence[Death], *, by: Callable[[Death], str]) -> str:
    groups: dict[str, list[Death]] = defaultdict(list)
    for death in deaths:
        groups[by(death)].append(death)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [(name, *_cells(held)) for name, held in [*ordered, ("all", list(deaths))]]
    return columns((first, *COLUMNS), rows)


def _cells(deaths: Sequence[Death]) -> tuple[str, ...]:
    return (
        str(len(deaths)),
        _sum(d.loss.siblings_reused for d in deaths),
        _sum(d.loss.siblings_lost for d in deaths),
        _sum(d.loss.tokens_reused for d in deaths),
        _sum(d.loss.tokens_lost for d in deaths),
        _median(d.ended.first_dispatch_s for d in deaths),
        _median(d.ended.first_response_s for d in deaths),
    )


def _median(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.1f}" if known else "-"


def _sum(values: Iterable[int]) -> str:
    return f"{sum(values):,}"


def _summary(verdict: Verdict) -> str:
    restart = _quantiles(verdict.restarts_s)
    shown = f"p50 {restart['p50']:.2f} s, worst {restart['max']:.2f} s" if restart else "-"
    deaths = verdict.deaths
    lost = [death.loss.siblings_lost for death in deaths] or [0]
    tokens = [death.loss.tokens_lost for death in deaths] or [0]
    return (
        f"{verdict.kills} kills and {verdict.cuts} power cuts in {verdict.lives} lives of "
        f"{verdict.audited} runs, {verdict.finished} of them to the end, {verdict.seconds:.0f} s, "
        f"seed {verdict.campaign.seed}. Reused: {verdict.siblings_reused:,} siblings with "
        f"{verdict.tokens_reused:,} tokens, and {verdict.prefix_tokens_reused:,} tokens of "
        f"unfinished ones. Lost per kill: {statistics.mean(lost):.1f} siblings with "
        f"{statistics.mean(tokens):.0f} tokens, at most {max(lost)} with {max(tokens):,}. "
        f"Lock to first dispatch after a restart: {shown}"
    )


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {"p50": statistics.median(values), "max": max(values)}
