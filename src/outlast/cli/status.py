"""`outlast status RUN`: what a run is doing, and what a kill now would cost.

May import: `durable`, `telemetry`, `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from outlast.cli.inspect import Status


def status(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what a run is doing and what a kill now would cost; disturbs nothing."""
    from outlast.cli.inspect import inspect_run
    from outlast.cli.output import open_run, print_json

    _, listing = open_run(run)
    found = inspect_run(run, listing)
    print_json(found) if as_json else typer.echo(_text(found))


def _text(s: Status) -> str:
    from outlast.cli import format as fmt

    if s.state.value == "empty":
        return "empty: no controller has adopted this directory yet"
    target = "" if s.steps_target is None else f" of {s.steps_target}"
    reward = "" if s.reward is None else f", reward {s.reward:.3f}"
    rows = [
        ("recipe", s.recipe or ""),
        ("life", _life(s)),
        ("step", f"{s.step}{target}{reward}"),
        ("rollouts", _rollouts(s)),
        ("saved", _saved(s)),
        ("kill now", _cost(s)),
        ("damaged", f"{fmt.plural(s.damaged, 'cut')}; see `snapshots`" if s.damaged else ""),
    ]
    head = s.state.value + (f" ({s.reason})" if s.reason not in (None, s.state.value) else "")
    return f"{head}\n{fmt.table([row for row in rows if row[1]])}"


def _life(s: Status) -> str:
    from outlast.cli.output import ago

    if s.started is None:
        return "starting: not adopted yet"
    source = "fresh start" if s.restored_from is None else f"restored from cut {s.restored_from}"
    where = f"pid {s.pid} on {s.host}, " if s.state.value == "running" else ""
    return f"incarnation {s.incarnation}, {where}{source}, started {ago(s.started)}"


def _rollouts(s: Status) -> str:
    from outlast.cli import format as fmt

    if s.state.value != "running":
        return f"{fmt.plural(s.outstanding, 'group')} unsettled, {s.buffered} of them buffered"
    pace = "" if s.tokens_per_s is None else f", {fmt.count(s.tokens_per_s)} tokens/s"
    return f"{s.inflight} in flight, {fmt.plural(s.buffered, 'group')} buffered{pace}"


def _saved(s: Status) -> str:
    from outlast.cli import format as fmt

    if s.last_snapshot is None or s.last_snapshot_age_s is None:
        return "nothing yet"
    return (
        f"{s.last_snapshot} (version {s.last_snapshot_version}), "
        f"{fmt.duration(s.last_snapshot_age_s)} ago"
    )


def _cost(s: Status) -> str:
    from outlast.cli import format as fmt

    if s.state.value == "killed":
        if s.lost_tokens is None:
            return "nothing runs; what the kill cost is not recorded"
        return f"nothing runs; the kill cost about {fmt.count(s.lost_tokens)} tokens"
    if s.state.value != "running":
        return "would cost nothing: nothing runs"
    if s.at_risk_tokens is None or s.at_risk_s is None:
        return "unknown: the run has not said yet (telemetry.jsonl)"
    if not s.at_risk_tokens:
        return "would cost nothing"
    return (
        f"would cost {fmt.count(s.at_risk_tokens)} tokens, "
        f"{fmt.duration(s.at_risk_s)} of generation"
    )
