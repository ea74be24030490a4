"""What snapshots cost a run and how fast it decodes, from the telemetry of its lives.

May import: `telemetry`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from outlast.telemetry.events import Gauges, SnapshotPublished
from outlast.telemetry.summary import Stamped, read_events, telemetry_files


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Means over one or more lives; None where no event says it."""

    snapshots: int
    cost_s: float | None
    """From cut to acknowledgement: hold, save and commit."""
    hold_s: float | None
    """The part of it that holds the event loop."""
    bytes_new: float | None
    interval_s: float | None
    """Mean time between publications of one life, last snapshots excluded."""
    tokens_per_s: float | None
    """Mean decode rate while anything was decoded."""
    at_risk_tokens: float | None
    """Mean of what a kill would have cost at each gauge."""


def read_costs(run_dir: Path, *, newest_only: bool = False) -> Costs:
    """Costs over all lives whose telemetry was kept, or over the newest alone."""
    files = list(telemetry_files(run_dir).values())
    lives = [list(read_events(path)) for path in (files[-1:] if newest_only else files)]
    return costs_of(lives)


def costs_of(lives: Iterable[Iterable[Stamped]]) -> Costs:
    """Costs over the events of several lives."""
    snapshots: list[SnapshotPublished] = []
    gauges: list[Gauges] = []
    gaps: list[float] = []
    for life in lives:
        before: float | None = None
        for stamped in life:
            match stamped.event:
                case SnapshotPublished():
                    snapshots.append(stamped.event)
                    if before is not None and not stamped.event.final:
                        gaps.append(stamped.wall - before)
                    before = stamped.wall
                case Gauges():
                    gauges.append(stamped.event)
                case _:
                    pass
    return Costs(
        snapshots=len(snapshots),
        cost_s=_mean(s.save_s + s.commit_s for s in snapshots),  # the hold is part of save_s
        hold_s=_mean(s.hold_s for s in snapshots),
        bytes_new=_mean(float(s.bytes_written) for s in snapshots),
        interval_s=_mean(gaps),
        tokens_per_s=_mean(g.tokens_per_s for g in gauges if g.tokens_per_s > 0),
        at_risk_tokens=_mean(float(g.at_risk_tokens) for g in gauges),
    )


def _mean(values: Iterable[float]) -> float | None:
    held = list(values)
    return sum(held) / len(held) if held else None
