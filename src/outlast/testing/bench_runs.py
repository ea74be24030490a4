"""Lives of the real program for benchmarks: start one, wait for it, read its pace off the tape.

Everything is judged from the events, so a recipe needs nothing special. One life at a time.
May import: the chaos harness's child, `telemetry`.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from outlast.telemetry import events
from outlast.testing.chaos_child import Child, Taped
from outlast.testing.chaos_lives import Hung

POLL_S = 0.25
"""Rare enough not to take a core from the program that is measured."""
LIFE_MAX_S = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train; without a recipe, the built-in demo."""

    recipe: str | None = None
    overrides: tuple[str, ...] = ()

    def arguments(self, run_dir: Path, *more: str) -> tuple[str, ...]:
        """Of `outlast train`; `more` are overrides that win."""
        chosen = ("validation.enabled=false", *self.overrides, *more)
        options = [part for override in chosen for part in ("--set", override)]
        return (*([self.recipe] if self.recipe else []), *options, "--run-dir", str(run_dir))


@contextlib.contextmanager
def life(arguments: Sequence[str], place: Path, *, name: str) -> Iterator[Child]:
    """A life whose tape and log lie in `place`; it is dead afterwards."""
    place.mkdir(parents=True, exist_ok=True)
    with Child(
        arguments,
        tape=place / f"{name}.tape",
        log=place / f"{name}.log",
        environment={"OMP_NUM_THREADS": "1"},
    ) as child:
        yield child


def wait_for(child: Child, reached: Callable[[], bool], *, seconds_max: float = LIFE_MAX_S) -> bool:
    """Wait until `reached` or the child's own end (then False). Raises Hung past the bound."""
    until = time.monotonic() + seconds_max
    while time.monotonic() < until:
        if reached():
            return True
        if child.returncode is not None:
            return False
        time.sleep(POLL_S)
    raise Hung(f"{child.log.stem} went on for {seconds_max:g} s\n{child.last_words()}")


def kill(child: Child) -> None:
    """SIGKILL, and the last of its tape."""
    child.signal(signal.SIGKILL)
    child.wait(60.0)


def expect_success(child: Child) -> None:
    """Raises Hung with the child's last words unless it reached its target."""
    if child.returncode != 0:
        raise Hung(f"{child.log.stem} ended with {child.returncode}\n{child.last_words()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One undisturbed life."""

    tape: tuple[Taped, ...]
    cpu_s: float
    """Of the process, start and end included."""


def run_to_end(arguments: Sequence[str], place: Path, *, name: str) -> Finished:
    """Run one life to its target."""
    before = _children_cpu_s()
    with life(arguments, place, name=name) as child:
        wait_for(child, lambda: False)
        expect_success(child)
        child.read()
        tape = tuple(child.events)
    return Finished(tape=tape, cpu_s=_children_cpu_s() - before)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# ------------------------------------------------------------------------------- off the tape


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Training between two steps."""

    steps: int
    tokens: int
    """Response tokens of the groups that were trained."""
    seconds: float
    snapshots: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def steps_per_s(self) -> float:
        return self.steps / self.seconds


def pace(tape: Sequence[Taped], *, first: int, last: int) -> Pace:
    """Pace after step `first` and up to step `last`, start and warm-up excluded.

    Raises ValueError when the tape does not hold both steps.
    """
    walls = {t.event.step: t.wall for t in tape if isinstance(t.event, events.StepFinished)}
    if first not in walls or last not in walls or first >= last:
        raise ValueError(f"steps {first} and {last} are not both among {sorted(walls)}")
    tokens = step_tokens(t.event for t in tape)
    published = [t.wall for t in tape if isinstance(t.event, events.SnapshotPublished)]
    return Pace(
        steps=last - first,
        tokens=sum(count for step, count in tokens.items() if first < step <= last),
        seconds=walls[last] - walls[first],
        snapshots=sum(1 for wall in published if walls[first] < wall <= walls[last]),
    )


def step_tokens(
    said: Iterator[events.AnyEvent], committed: dict[int, int] | None = None
) -> dict[int, int]:
    """Step -> response tokens of its groups. `committed` (group -> tokens) is kept up to date:
    pass the same one for every life of a run, since a group may be committed in an earlier life.
    """
    known = {} if committed is None else committed
    steps: dict[int, int] = {}
    for event in said:
        if isinstance(event, events.GroupCommitted):
            known[event.group] = event.tokens
        if isinstance(event, events.StepFinished):
            steps[event.step] = sum(known.get(group, 0) for group in event.groups)
    return steps
