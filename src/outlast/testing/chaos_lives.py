"""One life under a blow: start the program, strike, wait for the end, say what happened.

May import: `telemetry`, the child, the blows, the volume.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.cli.failpoints import VARIABLE
from outlast.errors import DiskError, OutlastError, Preempted
from outlast.telemetry import events
from outlast.testing.chaos_blows import Blow, Kind
from outlast.testing.chaos_child import POLL_S, Child, Taped
from outlast.testing.chaos_phase import Phase, phase_of
from outlast.testing.power import Copy, Volume

START_MAX_S = 180.0
"""Longest start of a life, imports included; beyond it the program hangs."""
GRACE_SLACK_S = 10.0
DEATH_MAX_S = 60.0
REACH = 4.0
"""A failpoint that is not reached within so many typical lives is given up for a SIGKILL."""


class Hung(OutlastError):
    """A life made no progress within its bound."""

    exit_code = 69


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is the same for every life of a lineage. Times in seconds."""

    arguments: tuple[str, ...]
    directory: Path
    """Of tapes and logs; outside of the run directory."""
    grace_s: float
    deadline: float
    """Monotonic time at which the campaign must have ended."""
    volume: Volume | None = None
    """The file system that the run lies on, when it has one of its own."""


@dataclass(slots=True)
class Pace:
    """How long things take here, learnt on the way, so that blows fall where work is done."""

    life_s: float
    fixed: bool
    start_s: float = 8.0
    _steps: list[float] = field(default_factory=list)

    def learn(self, tape: Sequence[Taped], *, first_dispatch_s: float | None) -> None:
        """Take in a life: the start, and the pace of its steps."""
        if first_dispatch_s is not None:
            self.start_s = 0.5 * (self.start_s + first_dispatch_s)
        for taped in tape:
            if isinstance(taped.event, events.StepFinished):
                self._steps.append(taped.event.wait_s + taped.event.train_s)
        if self._steps and not self.fixed:
            self.life_s = max(2.0, 2.5 * statistics.median(self._steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a life ended."""

    blow: Blow | None
    """None for a life that nobody disturbed."""
    returncode: int
    state: str
    """Last event on its tape, or the failpoint that ended it."""
    phase: Phase
    first_dispatch_s: float | None
    """From exec to the first dispatched request, imports included."""
    first_response_s: float | None
    """From exec to the first finished response."""
    restart_s: float | None
    """The same from the lock on: without imports and adapters (restarts only)."""
    tape: tuple[Taped, ...]
    complaints: tuple[str, ...]
    """Broken promises of the process itself: exit code, grace, silence."""
    cut: Copy | None = None
    """The power cut that ended it."""
    orphans: tuple[str, ...] = ()
    """What it had started and what outlived it: Outlast starts no process, a reward may."""

    @property
    def finished(self) -> bool:
        return self.returncode == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """What came of a blow."""

    reached: bool = False
    """Its failpoint was."""
    stop_s: float | None = None
    """From SIGTERM to the end."""
    cut: Copy | None = None
    """The power cut, if there was one."""


def live(number: int, blow: Blow | None, *, order: Order, pace: Pace) -> Ended:
    """Run one life to its end. Raises Hung when it neither works nor dies, NoPower as `Volume`."""
    environment = {"OMP_NUM_THREADS": "1", VARIABLE: (blow and blow.failpoint) or ""}
    with Child(
        order.arguments,
        tape=order.directory / f"life_{number:03d}.tape",
        log=order.directory / f"life_{number:03d}.log",
        environment=environment,
    ) as child:
        struck = _strike(child, blow, order=order, pace=pace) if blow else Struck()
        if blow is None and not child.wait(order.deadline - time.monotonic()):
            raise Hung(f"life {number} did not finish in time\n{child.last_words()}")
        child.read()
        ended = _ended(child, blow, order=order, struck=struck)
    if order.volume is not None:
        order.volume.drain()
        if struck.cut is not None:
            order.volume.swap()
    return ended


def _strike(child: Child, blow: Blow, *, order: Order, pace: Pace) -> Struck:
    """Deal the blow; the child is dead or about to finish afterwards."""
    if blow.early:
        child.wait(blow.at * pace.start_s)
    elif not _until_dispatch(child, order):
        return Struck(reached=blow.failpoint is not None)
    elif blow.failpoint is None or blow.needs_term or blow.kind is Kind.DISK_FULL:
        child.wait(blow.at * pace.life_s, or_stopped=True)
    struck = Struck()
    match blow.kind:
        case Kind.TERM:
            return Struck(stop_s=_terminate(child, order))
        case Kind.PAUSE:
            child.signal(signal.SIGSTOP)
            time.sleep(blow.pause_s)
            child.signal(signal.SIGCONT)
            child.wait(0.5 * blow.at * pace.life_s)
        case Kind.TERM_KILL:
            child.signal(signal.SIGTERM)
            child.wait(blow.pause_s)
        case Kind.FAILPOINT | Kind.TERM_AT:
            struck = _at_place(child, blow, order=order, pace=pace)
        case Kind.VOLUME_FULL if order.volume is not None:
            order.volume.fill(blow.spare_bytes)
            child.wait(0.5 * pace.life_s)
        case Kind.POWER_CUT if order.volume is not None:
            struck = _cut_power(child, blow, order=order, pace=pace)
        case _:
            pass
    child.signal(signal.SIGKILL)
    if not child.wait(DEATH_MAX_S):
        raise Hung(f"{child.log.stem} does not die of SIGKILL")
    return struck


def _at_place(child: Child, blow: Blow, *, order: Order, pace: Pace) -> Struck:
    """Wait until the failpoint ends it; for a while."""
    if blow.needs_term:
        child.signal(signal.SIGTERM)
    grace_s = order.grace_s if blow.kind is Kind.TERM_AT else 0.0
    return Struck(reached=child.wait(REACH * pace.life_s + grace_s))


def _cut_power(child: Child, blow: Blow, *, order: Order, pace: Pace) -> Struck:
    """Take what the disk holds while the program stands still: at its failpoint, or anywhere.

    All that its tape says was said before the copy began, so acknowledged means: in the copy.
    """
    assert order.volume is not None
    if blow.needs_term:
        child.signal(signal.SIGTERM)
    if blow.failpoint is not None:
        child.wait(REACH * pace.life_s, or_stopped=True)
    reached = child.stopped
    return Struck(reached=reached, cut=order.volume.copy() if child.stop(DEATH_MAX_S) else None)


def _until_dispatch(child: Child, order: Order) -> bool:
    """Wait for the first dispatch, or a stop at a failpoint; False when the child ends before."""
    limit = min(order.deadline, time.monotonic() + START_MAX_S)
    while time.monotonic() < limit:
        if any(isinstance(t.event, events.AttemptDispatched) for t in child.read()):
            return True
        if child.returncode is not None:
            return False
        if child.stopped:
            return True
        time.sleep(POLL_S)
    raise Hung(f"{child.log.stem} dispatched nothing in {START_MAX_S:g} s\n{child.last_words()}")


def _terminate(child: Child, order: Order) -> float:
    """SIGTERM and its promise: the end inside the grace."""
    began = time.monotonic()
    child.signal(signal.SIGTERM)
    if not child.wait(order.grace_s + GRACE_SLACK_S):
        child.signal(signal.SIGKILL)
        child.wait(DEATH_MAX_S)
    return time.monotonic() - began


def _ended(child: Child, blow: Blow | None, *, order: Order, struck: Struck) -> Ended:
    code = child.returncode
    assert code is not None
    tape = tuple(child.events)
    kinds = [type(taped.event).__name__ for taped in tape]
    state = kinds[-1] if kinds else "before adoption"
    place = blow.place if blow is not None and struck.reached else None
    if code == -signal.SIGKILL and place is not None:
        state = f"at {place}"
    complaints = list(_complaints(code, blow, tape=tape))
    if struck.stop_s is not None and struck.stop_s > order.grace_s + 1.0:
        complaints.append(f"L3: {struck.stop_s:.1f} s from SIGTERM, grace {order.grace_s:g} s")
    if complaints:
        complaints[-1] += f"\n{child.last_words()}"
    return Ended(
        blow=blow,
        returncode=code,
        state=state,
        phase=phase_of(tape, place=place, asked=blow is not None and blow.asks_to_stop),
        first_dispatch_s=_since(tape, child.spawned, until=events.AttemptDispatched),
        first_response_s=_since(tape, child.spawned, until=events.SiblingSealed),
        restart_s=_since(tape, _locked(tape), until=events.AttemptDispatched),
        tape=tape,
        complaints=tuple(complaints),
        cut=struck.cut,
        orphans=tuple(child.orphans()),
    )


def _complaints(code: int, blow: Blow | None, *, tape: Sequence[Taped]) -> list[str]:
    """Whether the exit code is one that the blow allows, and an orderly end has its last word."""
    allowed = {0}
    if blow is not None:
        allowed |= {-signal.SIGKILL}
        if blow.asks_to_stop:
            allowed |= {Preempted.exit_code}
        if blow.kind is Kind.TERM:
            allowed -= {-signal.SIGKILL}
        if blow.kind in (
            Kind.DISK_FULL,
            Kind.VOLUME_FULL,
        ):  # the run reached its end and could not save its last state
            allowed |= {DiskError.exit_code}
    wrong = [] if code in allowed else [f"exit code {code}; allowed: {sorted(allowed)}"]
    last = [taped.event for taped in tape if isinstance(taped.event, events.RunEnded)]
    if code == Preempted.exit_code and (not last or last[-1].reason != "preempted"):
        wrong.append("P7: exit code 75 without the event of a preempted run")
    return wrong


def _since(
    tape: Sequence[Taped], began: float | None, *, until: type[events.Event]
) -> float | None:
    first = next((t.wall for t in tape if isinstance(t.event, until)), None)
    return None if first is None or began is None else max(0.0, first - began)


def _locked(tape: Sequence[Taped]) -> float | None:
    """Wall time at which a resuming life took its lock."""
    return next(
        (t.wall - t.event.load_s for t in tape if isinstance(t.event, events.Restored)), None
    )
