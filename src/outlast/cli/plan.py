"""`outlast plan RUN`: how often to snapshot, from this run's own measurements.

May import: `telemetry`, `runtime.interval`, `cli`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlast.errors import NotRestorable, RecipeError

if TYPE_CHECKING:
    from outlast.telemetry.costs import Costs

INTERVALS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One interval; shares are of the run's time."""

    interval_s: float
    overhead: float
    """Taking snapshots, as if nothing ran meanwhile."""
    loss: float
    """Work done again after kills."""
    total: float
    loss_s: float
    """Per kill."""
    loss_tokens: float | None
    """Per kill."""
    bytes_per_hour: float | None
    """Written, at most: a longer interval has more that is new."""
    optimum: bool


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast plan --json`."""

    mtbf_s: float
    mtbf_from: str
    snapshots: int
    """Snapshots measured."""
    cost_s: float
    hold_s: float
    tokens_per_s: float | None
    measured_interval_s: float | None
    optimum_s: float
    """sqrt(2 x mtbf_s x cost_s), not bounded."""
    auto_s: float
    """What `snapshot_attempt_interval_s: auto` would choose."""
    rows: tuple[Row, ...]


def plan(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    mtbf_s: Annotated[
        float | None,
        typer.Option(min=1e-9, help="Mean seconds between kills; else the recipe's mtbf_s."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Advise on the snapshot interval: expected loss and overhead at each."""
    from outlast.cli.output import open_run, print_json
    from outlast.telemetry.costs import read_costs

    open_run(run, verify="names")
    costs = read_costs(run)
    if costs.cost_s is None or costs.hold_s is None:
        raise NotRestorable(
            f"{run}: no snapshot stands in its telemetry, so its cost is unknown. Run it with "
            "telemetry.jsonl: true and an interval of 1 s for a minute"
        )
    mean, source = _mtbf(run, mtbf_s)
    advice = _advise(costs, cost_s=costs.cost_s, mtbf_s=mean, source=source)
    print_json(advice) if as_json else typer.echo(_text(advice))


def _mtbf(run: Path, given: float | None) -> tuple[float, str]:
    from outlast.cli.recipes import recipe_of

    if given is not None:
        return given, "--mtbf-s"
    configured = recipe_of(run, None, overrides=()).recipe.rollout_checkpointing.mtbf_s
    if configured is None:
        raise RecipeError(
            "plan: the optimum depends on how often the run is killed; required: --mtbf-s, such "
            "as 14400 for once in four hours, or rollout_checkpointing.mtbf_s in the recipe"
        )
    return configured, "rollout_checkpointing.mtbf_s"


def _advise(costs: Costs, *, cost_s: float, mtbf_s: float, source: str) -> Advice:
    from outlast.runtime.interval import chosen_interval, optimal_interval

    optimum = optimal_interval(mtbf_s=mtbf_s, cost_s=cost_s)
    intervals = sorted({*INTERVALS, optimum})
    return Advice(
        mtbf_s=mtbf_s,
        mtbf_from=source,
        snapshots=costs.snapshots,
        cost_s=cost_s,
        hold_s=costs.hold_s or 0.0,
        tokens_per_s=costs.tokens_per_s,
        measured_interval_s=costs.interval_s,
        optimum_s=optimum,
        auto_s=chosen_interval(mtbf_s=mtbf_s, cost_s=cost_s),
        rows=tuple(
            _row(at, costs, cost_s=cost_s, mtbf_s=mtbf_s, optimum=at == optimum) for at in intervals
        ),
    )


def _row(at: float, costs: Costs, *, cost_s: float, mtbf_s: float, optimum: bool) -> Row:
    from outlast.runtime.interval import waste

    found = waste(at, mtbf_s=mtbf_s, cost_s=cost_s)
    rate, size = costs.tokens_per_s, costs.bytes_new
    return Row(
        interval_s=at,
        overhead=found.overhead,
        loss=found.loss,
        total=found.total,
        loss_s=found.loss_s,
        loss_tokens=None if rate is None else rate * found.loss_s,
        bytes_per_hour=None if size is None else size * 3600.0 / max(at, cost_s),
        optimum=optimum,
    )


def _text(a: Advice) -> str:
    from outlast.cli import format as fmt
    from outlast.cli.output import columns

    measured = f"{fmt.duration(a.cost_s)} from cut to acknowledgement, the loop held "
    measured += f"{1e3 * a.hold_s:.1f} ms of it (mean of {fmt.plural(a.snapshots, 'snapshot')})"
    rate = "" if a.tokens_per_s is None else f"{fmt.count(a.tokens_per_s)} tokens/s"
    rows = [
        ("cost", measured),
        ("pace", rate),
        ("kills", f"one in {fmt.duration(a.mtbf_s)} ({a.mtbf_from})"),
        (
            "optimum",
            f"every {fmt.duration(a.optimum_s)} = sqrt(2 x MTBF x cost); "
            f"auto would choose {fmt.duration(a.auto_s)}",
        ),
    ]
    header = ("every", "overhead", "redone", "total", "per kill", "tokens", "")
    cells = [_cells(row) for row in a.rows]
    note = (
        "overhead counts a snapshot as if nothing ran meanwhile, so it is an upper bound; redone\n"
        "is what kills throw away: half an interval and one snapshot each (Young 1974, Daly 2006)"
    )
    return f"{fmt.table([r for r in rows if r[1]])}\n\n{columns(header, cells)}\n\n{note}"


def _cells(row: Row) -> tuple[str, ...]:
    from outlast.cli import format as fmt

    return (
        fmt.duration(row.interval_s),
        f"{100 * row.overhead:.2f}%",
        f"{100 * row.loss:.2f}%",
        f"{100 * row.total:.2f}%",
        fmt.duration(row.loss_s),
        "-" if row.loss_tokens is None else fmt.count(row.loss_tokens),
        "<- optimum" if row.optimum else "",
    )
