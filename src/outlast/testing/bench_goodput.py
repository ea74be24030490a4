"""Goodput under kills: what each kind of rollout state saves, on the same schedule of kills.

Every set-up trains the same recipe to the same step and is killed (SIGKILL) at the same seconds
after the first dispatch of each life; when the schedule is used up, it runs to its end. From one
set-up to the next a single thing changes:

| set-up | what a restart finds |
|---|---|
| undisturbed | (no kills: the reference) |
| none | the newest trainer checkpoint; outstanding prompts are drawn again (`outlast fork
  --without-rollouts`, whose time is not counted: a trainer without rollout state needs none) |
| step | the newest trainer checkpoint and the finished siblings of that step boundary |
| sibling | the newest snapshot: every sibling finished before it |
| token | the newest snapshot: also the tokens of unfinished siblings |

Goodput is trained response tokens per second of the wall clock, from the first start to the last
step, restarts included. Regenerated tokens are those decoded beyond the trained ones.
May import: `bench_runs`, `durable` (which checkpoint stands).
"""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from outlast.durable.cuts import newest_cut
from outlast.durable.files import PosixFiles
from outlast.durable.listing import read_run
from outlast.telemetry import events
from outlast.testing.bench_measures import Say
from outlast.testing.bench_runs import Job, expect_success, kill, life, step_tokens, wait_for
from outlast.testing.chaos_child import PROGRAM, Taped
from outlast.testing.chaos_lives import Hung

FILES = PosixFiles()
GAUGES = "rollout_checkpointing.telemetry_interval_s=0.1"
INTERVAL = "rollout_checkpointing.snapshot_attempt_interval_s"
LEVEL = "rollout_recovery.default_level"
REFERENCE = "undisturbed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUp:
    """One way to keep rollouts, or not to."""

    name: str
    overrides: tuple[str, ...]
    killed: bool = True
    forgets: bool = False
    """Drops every rollout before a restart."""


def set_ups(interval_s: float) -> tuple[SetUp, ...]:
    """The four, and the reference."""
    every, never = f"{INTERVAL}={interval_s}", f"{INTERVAL}=null"
    return (
        SetUp(name=REFERENCE, overrides=(every, f"{LEVEL}=token"), killed=False),
        SetUp(name="none", overrides=(never, f"{LEVEL}=sibling"), forgets=True),
        SetUp(name="step", overrides=(never, f"{LEVEL}=sibling")),
        SetUp(name="sibling", overrides=(every, f"{LEVEL}=sibling")),
        SetUp(name="token", overrides=(every, f"{LEVEL}=token")),
    )


LONG = (
    "algorithm.num_prompts_per_step=8",
    "algorithm.num_generations_per_prompt=8",
    "async_rl.min_groups_for_streaming_train=2",
    "async_rl.max_inflight_prompts=16",
    "async_rl.max_buffered_rollouts=16",
    "generation.max_new_tokens=512",
    "generation.max_batch_size=40",
    "training.micro_batch_size=16",
)
"""The built-in demo with responses of 512 tokens (its model made endless): a step takes seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """How much to run. Times in seconds."""

    steps: int = 16
    kills: int = 6
    mean_life_s: float = 12.0
    interval_s: float = 1.0
    seed: int = 0
    names: tuple[str, ...] = (REFERENCE, "none", "step", "sibling", "token")


def schedule(plan: Goodput) -> tuple[float, ...]:
    """Seconds from the first dispatch of each life to its kill: half to one and a half the mean."""
    rng = random.Random(plan.seed)
    return tuple(plan.mean_life_s * rng.uniform(0.5, 1.5) for _ in range(plan.kills))


@dataclass(slots=True, kw_only=True)
class Account:
    """The books of one set-up over its lives."""

    wall_s: float = 0.0
    """From start to kill, or to the last step, summed."""
    restart_s: float = 0.0
    """Of that: from start to first dispatch."""
    generated: int = 0
    kills: int = 0
    lives: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    """Step -> trained tokens; steps that a restart went back behind are gone."""
    curve: list[tuple[float, int]] = field(default_factory=list)
    """(seconds, trained tokens so far)."""
    deaths: list[tuple[float, int]] = field(default_factory=list)
    _committed: dict[int, int] = field(default_factory=dict)

    @property
    def trained(self) -> int:
        return sum(self.steps.values())

    def take(self, tape: Sequence[Taped], *, spawned: float, ended: float, killed: bool) -> None:
        """One life: its tape, and when it was started and ended (wall times)."""
        said = [taped.event for taped in tape]
        version = next(
            (e.trainer_version + e.steps_to_replay for e in said if isinstance(e, events.Restored)),
            0,
        )
        self.lives += 1
        self.steps = {step: count for step, count in self.steps.items() if step <= version}
        begun = self.wall_s
        first = _first_dispatch(tape)
        self.restart_s += (ended if first is None else first) - spawned
        self.curve.append((begun, self.trained))
        tokens = step_tokens(iter(said), self._committed)
        for taped in tape:
            if isinstance(taped.event, events.StepFinished):
                self.steps[taped.event.step] = tokens[taped.event.step]
                self.curve.append((begun + taped.wall - spawned, self.trained))
        self.generated += generated(tape)
        self.wall_s = begun + ended - spawned
        if killed:
            self.kills += 1
            self.deaths.append((self.wall_s, self.trained))

    def document(self) -> dict[str, object]:
        """The figures of one set-up, JSON-ready."""
        return {
            "goodput_tokens_per_s": self.trained / self.wall_s,
            "wall_s": self.wall_s,
            "restart_s": self.restart_s,
            "trained_tokens": self.trained,
            "generated_tokens": self.generated,
            "regenerated_tokens": max(0, self.generated - self.trained),
            "steps": len(self.steps),
            "kills": self.kills,
            "lives": self.lives,
            "curve": [[round(at, 2), count] for at, count in self.curve],
            "deaths": [[round(at, 2), count] for at, count in self.deaths],
        }


def generated(tape: Sequence[Taped]) -> int:
    """Tokens a life decoded, as its last gauge says: what followed within 0.1 s is not counted."""
    gauges = [taped.event for taped in tape if isinstance(taped.event, events.Gauges)]
    return gauges[-1].generated_tokens if gauges else 0


def _first_dispatch(tape: Sequence[Taped]) -> float | None:
    return next((t.wall for t in tape if isinstance(t.event, events.AttemptDispatched)), None)


# ------------------------------------------------------------------------------------ the runs


def measure_goodput(
    directory: Path, job: Job, *, plan: Goodput, say: Say
) -> dict[str, dict[str, object]]:
    """Figures by set-up, in the order of `set_ups`."""
    found: dict[str, dict[str, object]] = {}
    for set_up in set_ups(plan.interval_s):
        if set_up.name not in plan.names:
            continue
        account = _drive(directory / set_up.name, job, plan=plan, set_up=set_up, say=say)
        found[set_up.name] = account.document()
    return found


def _drive(place: Path, job: Job, *, plan: Goodput, set_up: SetUp, say: Say) -> Account:
    account, number = Account(), 0
    run_dir = place / "run_000"
    kills = list(schedule(plan)) if set_up.killed else []
    more = (GAUGES, f"algorithm.max_num_steps={plan.steps}", *set_up.overrides)
    while plan.steps not in account.steps:
        at = kills.pop(0) if kills else None
        say(f"{set_up.name}: life {number + 1}, {'to the end' if at is None else f'{at:.1f} s'}")
        arguments = job.arguments(run_dir, *more)
        _live(arguments, place, account=account, number=number, kill_s=at)
        number += 1
        if set_up.forgets and plan.steps not in account.steps:
            run_dir = forget(run_dir, place / f"run_{number:03d}")
    return account


def _live(
    arguments: Sequence[str], place: Path, *, account: Account, number: int, kill_s: float | None
) -> None:
    """One life: killed `kill_s` after its first dispatch, else to its end."""
    with life(arguments, place, name=f"life_{number:03d}") as child:

        def struck() -> bool:
            child.read()
            first = _first_dispatch(child.events)
            return kill_s is not None and first is not None and time.time() >= first + kill_s

        killed = wait_for(child, struck)
        ended = time.time()
        if killed:
            kill(child)
        else:
            expect_success(child)
        child.read()
        if not killed:  # what comes after the last step is not training
            ended = max(t.wall for t in child.events if isinstance(t.event, events.StepFinished))
        account.take(child.events, spawned=child.spawned, ended=ended, killed=killed)


def forget(run_dir: Path, new_dir: Path) -> Path:
    """A run that goes on from the newest trainer checkpoint without any rollout."""
    path = PurePosixPath(run_dir.absolute())
    newest = newest_cut(FILES, path, listing=read_run(FILES, path, verify="manifest"))
    if newest.found is None:
        return new_dir  # nothing was saved yet: from the beginning
    at = newest.found.path.name
    command = [*PROGRAM, "fork", str(run_dir), "--at", at, str(new_dir), "--without-rollouts"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Hung(f"fork at {at} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return new_dir
