"""Hundreds of snapshots a second apart: bytes per snapshot and disk use must not grow.

One real run, stopped after so many snapshots, watched from outside; then the same steps with
snapshots off, for what they cost. May import: `bench_runs`.
"""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.config.load import load_recipe
from outlast.telemetry import events
from outlast.testing.bench_measures import Figures, Say
from outlast.testing.bench_runs import (
    Job,
    expect_success,
    kill,
    life,
    pace,
    run_to_end,
    wait_for,
)
from outlast.testing.chaos_child import Child, Taped

STEPS_WITHOUT_END = 1_000_000
STATE = ("snapshots", "segments", "step_", "stale_step_", "tmp_", "trash_")
"""Beginnings of the names that hold saved state; the rest is logs and telemetry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Many:
    """How much to run."""

    snapshots: int = 200
    interval_s: float = 1.0
    warm_steps: int = 10
    """Not counted where throughput is compared."""


@dataclass(slots=True)
class Watch:
    """The run directory, looked at every quarter of a second from the first snapshot on."""

    run_dir: Path
    state_bytes: list[int] = field(default_factory=list)
    all_bytes: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    """Snapshot directories under a live name."""

    def look(self) -> None:
        snapshots = self.run_dir / "snapshots"
        names = os.listdir(snapshots) if snapshots.is_dir() else []
        if not names:
            return  # it has not begun
        state, rest = disk_use(self.run_dir)
        self.state_bytes.append(state)
        self.all_bytes.append(state + rest)
        self.live.append(sum(1 for name in names if name.startswith("snapshot_")))


def disk_use(run_dir: Path) -> tuple[int, int]:
    """(bytes of saved state, bytes of everything else); a file with many names counts once."""
    seen: set[int] = set()
    state = rest = 0
    for directory, _, names in os.walk(run_dir):
        for name in names:
            path = Path(directory) / name
            try:
                found = path.stat()
            except FileNotFoundError:  # retention was faster
                continue
            if found.st_ino in seen:
                continue
            seen.add(found.st_ino)
            if path.relative_to(run_dir).parts[0].startswith(STATE):
                state += found.st_size
            else:
                rest += found.st_size
    return state, rest


def measure_many(directory: Path, job: Job, *, plan: Many, say: Say) -> Figures:
    """Figures of the run, and its throughput relative to a run without snapshots."""
    place = directory / "many"
    say(f"{plan.snapshots} snapshots, one every {plan.interval_s:g} s")
    watch = Watch(place / "run")
    arguments = job.arguments(
        watch.run_dir,
        f"algorithm.max_num_steps={STEPS_WITHOUT_END}",
        f"rollout_checkpointing.snapshot_attempt_interval_s={plan.interval_s}",
    )
    with life(arguments, place, name="life") as child:
        seconds_max = 300 + 10 * plan.snapshots * plan.interval_s
        reached = _reached(child, watch, wanted=plan.snapshots)
        if not wait_for(child, reached, seconds_max=seconds_max):
            expect_success(child)  # the recipe's data ended early
        kill(child)
        tape = tuple(child.events)
    shutil.rmtree(place)
    last = max(t.event.step for t in tape if isinstance(t.event, events.StepFinished))
    say(f"the same {last} steps without snapshots")
    without = run_to_end(
        job.arguments(
            directory / "without" / "run",
            f"algorithm.max_num_steps={last}",
            "rollout_checkpointing.snapshot_attempt_interval_s=null",
        ),
        directory / "without",
        name="life",
    )
    shutil.rmtree(directory / "without")
    first = min(plan.warm_steps, last - 1)
    ours, theirs = (pace(t, first=first, last=last) for t in (tape, without.tape))
    keep = load_recipe(job.recipe, job.overrides).recipe.rollout_checkpointing.keep_latest_k
    return {
        **growth(tape, plan.snapshots),
        **bounds(watch),
        "interval_s": plan.interval_s,
        "keep_latest_k": keep,
        "steps": ours.steps,
        "seconds": ours.seconds,
        "ratio": ours.tokens_per_s / theirs.tokens_per_s,
    }


def _reached(child: Child, watch: Watch, *, wanted: int) -> Callable[[], bool]:
    """Whether so many snapshots were published; looks at the disk on the way."""
    count = 0

    def reached() -> bool:
        nonlocal count
        watch.look()
        count += sum(1 for t in child.read() if isinstance(t.event, events.SnapshotPublished))
        return count >= wanted

    return reached


def growth(tape: Sequence[Taped], wanted: int) -> Figures:
    """New bytes per snapshot, early and late."""
    found = [t.event for t in tape if isinstance(t.event, events.SnapshotPublished)][:wanted]
    quarter = max(1, len(found) // 4)
    early = statistics.median(e.bytes_written for e in found[:quarter])
    late = statistics.median(e.bytes_written for e in found[-quarter:])
    return {
        "snapshots": len(found),
        "bytes_first_quarter": early,
        "bytes_last_quarter": late,
        "bytes_growth": late / early,
        "hold_p50_ms": 1e3 * statistics.median(e.hold_s for e in found),
        "hold_max_ms": 1e3 * max(e.hold_s for e in found),
    }


def bounds(watch: Watch) -> Figures:
    """Largest disk use in the first and in the second half of the looks."""
    half = max(1, len(watch.state_bytes) // 2)
    early, late = max(watch.state_bytes[:half]), max(watch.state_bytes[half:] or [0])
    return {
        "looks": len(watch.state_bytes),
        "state_bytes_max_first_half": early,
        "state_bytes_max_second_half": late,
        "state_growth": late / early if early else 0.0,
        "all_bytes_max": max(watch.all_bytes),
        "live_max": max(watch.live),
    }
