"""What snapshots cost a training run: the same steps with none, one every 10 s, one every second.

Real runs, one after the other, same seed and same number of steps; the order turns from round to
round, and every ratio is taken within a round, so that a slow minute hits all alike.
May import: `bench_runs`.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.testing.bench_measures import Figures, Say
from outlast.testing.bench_runs import Job, Pace, pace, run_to_end

OFF = "null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """How much to run."""

    steps: int = 200
    warm_steps: int = 10
    """Not counted."""
    rounds: int = 4
    intervals: tuple[str, ...] = (OFF, "10", "1")
    """Values of `snapshot_attempt_interval_s`; the first is what the others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    """One run of one set-up."""

    pace: Pace
    cpu_s: float


def turned(items: Sequence[str], number: int) -> tuple[str, ...]:
    """The order of round `number`: each set-up comes first, second, ... equally often."""
    at = number % len(items)
    return (*items[at:], *items[:at])


def measure_throughput(
    directory: Path, job: Job, *, plan: Throughput, say: Say
) -> dict[str, Figures]:
    """Figures by interval."""
    laps: dict[str, list[Lap]] = {interval: [] for interval in plan.intervals}
    for number in range(plan.rounds):
        for interval in turned(plan.intervals, number):
            say(f"round {number + 1} of {plan.rounds}: {plan.steps} steps, snapshots {interval}")
            laps[interval].append(_lap(directory, job, plan=plan, interval=interval))
    return compared(laps)


def _lap(directory: Path, job: Job, *, plan: Throughput, interval: str) -> Lap:
    place = directory / "lap"
    arguments = job.arguments(
        place / "run",
        f"algorithm.max_num_steps={plan.steps}",
        f"rollout_checkpointing.snapshot_attempt_interval_s={interval}",
    )
    done = run_to_end(arguments, place, name="life")
    shutil.rmtree(place)
    return Lap(pace=pace(done.tape, first=plan.warm_steps, last=plan.steps), cpu_s=done.cpu_s)


def compared(laps: Mapping[str, Sequence[Lap]]) -> dict[str, Figures]:
    """Medians per set-up, and ratios to the first one, round by round: median, lowest, highest."""
    base = next(iter(laps.values()))
    return {interval: _figures(held, base) for interval, held in laps.items()}


def _figures(laps: Sequence[Lap], base: Sequence[Lap]) -> Figures:
    pairs = list(zip(laps, base, strict=True))
    ratios = [lap.pace.tokens_per_s / other.pace.tokens_per_s for lap, other in pairs]
    rates = [lap.pace.tokens_per_s for lap in laps]
    return {
        "rounds": len(laps),
        "steps": laps[0].pace.steps,
        "seconds": statistics.median(lap.pace.seconds for lap in laps),
        "snapshots": statistics.median(lap.pace.snapshots for lap in laps),
        "tokens_per_s": statistics.median(rates),
        "tokens_per_s_min": min(rates),
        "tokens_per_s_max": max(rates),
        "steps_per_s": statistics.median(lap.pace.steps_per_s for lap in laps),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "cpu_ratio": statistics.median(lap.cpu_s / other.cpu_s for lap, other in pairs),
    }
