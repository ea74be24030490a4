"""Harness (a), two controllers: one is replaced before any of its calls, and then goes on.

The second one takes the run over while the first stands still (a stopped process, a host that lost
its network), restores, adopts, sweeps and publishes. Then the first wakes up and runs its script to
the end or to the fence. The second must not notice: it goes on from memory and from its segments,
publishes, and is what the next start restores (A1 to A6, S7). May import: `testing.crash_*`.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field

from outlast.errors import DiskError, Fenced, OutlastError
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import Promises
from outlast.testing.crash_faults import count_calls
from outlast.testing.crash_laws import LawBroken, judge
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script


@dataclass
class TakeoverTally:
    """How the replaced controllers ended."""

    points: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        """One line for a test summary."""
        ends = ", ".join(f"{what} {count:,}" for what, count in sorted(self.ends.items()))
        return f"{self.points:,} takeovers; the replaced one: {ends}"


def enumerate_takeovers(script: Script, *, stride: int = 1, offset: int = 0) -> TakeoverTally:
    """A takeover before every `stride`-th call of a life, reads included. Raises LawBroken."""
    tally = TakeoverTally()
    for at in range(offset, count_calls(script), stride):
        tally.points += 1
        try:
            tally.ends[_takeover(script, at)] += 1
        except LawBroken as error:
            raise LawBroken(error.law, f"taken over before call {at}: {error}") from error
    return tally


class _Second:
    """The controller that takes over; it comes when the first is about to make call `at`."""

    def __init__(self, disk: CrashDisk, first: Promises, *, at: int) -> None:
        self.disk, self.at = disk, at
        self._first = first
        self.promises = Promises()
        self.life = Life(disk, self.promises, pid=2)
        self.came = False

    def interrupt(self) -> None:
        if self.came or self.disk.calls != self.at:
            return
        self.came = True
        self.disk.guard = lambda: None
        self.promises = self.life.promises = self._first.frozen()
        self.disk.unlock_all()  # a lease ran out, or --take-over across hosts
        self.life.start()
        self.life.draw(1)
        self.life.begin(1)
        with contextlib.suppress(DiskError):  # what the first did may cost a save, not the run
            self.life.snapshot()
        self.life.draw(1)

    def go_on(self) -> None:
        """After the first one has stopped for good."""
        self.life.grow()
        for last in (False, True):
            try:
                self.life.snapshot()
                break
            except DiskError:
                if last:
                    raise
        self.life.step(1)
        self.life.snapshot()


def _takeover(script: Script, at: int) -> str:
    disk, promises = CrashDisk(), Promises()
    first = Life(disk, promises)
    second = _Second(disk, promises, at=at)
    disk.guard = second.interrupt
    end = _live(first, script)
    if not second.came:
        return "nobody came"
    if first.adoption is not None and first.incarnation > second.life.incarnation:
        return "it had not adopted, and took the run back"
    try:
        second.go_on()
    except (OutlastError, OSError) as error:
        raise LawBroken("A2", f"the new controller fails: {error!r}") from error
    held = second.promises
    judge(disk.visible(), held).check(held)
    return end


def _live(life: Life, script: Script) -> str:
    """Run the replaced one; after a failed save it tries once more, as the runtime does."""
    for tries in ("", "a save failed, then "):
        try:
            if not tries:
                life.start()
                script(life)
            life.snapshot()
        except Fenced:
            return f"{tries}fenced"
        except DiskError:
            continue
        except (OutlastError, OSError) as error:
            return f"{tries}{type(error).__name__}"
        return f"{tries}had ended"
    return "a save failed twice"
