"""The I/O-error loop: every call of a life fails, once or for good, and the run goes on.

After the fault the disk heals. Then A1-A4 must hold on the tree as it stands and on its crash
states, and the next publication of whoever owns the run must succeed. May import:
`testing.crash_*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from outlast.errors import DiskError, Fenced, OutlastError
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_enumeration import tree_states
from outlast.testing.crash_facts import Promises
from outlast.testing.crash_laws import (
    LawBroken,
    Verdict,
    judge,
    judge_scratch,
    require,
    scratch_shape,
)
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script, tolerant


@dataclass
class FaultTally:
    """What the loop did."""

    runs: int = 0
    hit: Counter[str] = field(default_factory=Counter)
    """Runs by (kind, where the error surfaced)."""
    states: int = 0

    def line(self) -> str:
        """One line for a test summary."""
        surfaced = ", ".join(f"{what} {n:,}" for what, n in sorted(self.hit.items()))
        return f"{self.runs:,} faults; {self.states:,} states judged; surfaced in: {surfaced}"


def count_calls(script: Script) -> int:
    """File operations of an undisturbed life, reads included."""
    disk = CrashDisk()
    life = Life(disk, Promises())
    life.start()
    script(life)
    return disk.calls


def faults_of(script: Script) -> Iterator[Fault]:
    """Every call x {once, persistent} x {EIO, ENOSPC, short write}."""
    for at in range(count_calls(script)):
        for kind in FaultKind:
            for persistent in (False, True):
                yield Fault(at, kind, persistent=persistent)


class FaultLoop:
    """Runs a script once per fault. Raises LawBroken naming the fault.

    Crash states are judged after every third fault, the tree as it stands after each.
    """

    def __init__(self, script: Script) -> None:
        self.tally = FaultTally()
        self._script = tolerant(script)
        self._known: dict[object, Verdict] = {}
        self._swept: set[object] = set()

    def run(self, fault: Fault) -> None:
        """One life with `fault`, then judgement."""
        disk, promises = CrashDisk(), Promises()
        disk.on_change = promises.notice
        disk.fault = fault
        life = Life(disk, promises)
        where = self._live(life)
        disk.fault = None
        if not disk.faults_hit:  # such a call cannot fail that way: a read needs no space
            return
        self.tally.runs += 1
        self.tally.hit[where] += 1
        try:
            self._judge(disk, promises)
            self._go_on(disk, life, started=where != "start")
        except LawBroken as error:
            raise LawBroken(error.law, f"after {fault}: {error}") from error

    def _live(self, life: Life) -> str:
        """Run the script; where the fault surfaced."""
        try:
            life.start()
        except DiskError:
            return "start"
        errors = self._script(life)
        if errors:
            return "publication"
        return "retention" if life.warnings else "nowhere"

    def _judge(self, disk: CrashDisk, promises: Promises) -> None:
        models = "KO" if self.tally.runs % 3 == 1 else "K"
        for _, image in tree_states(disk, models, ordered_cap=8):
            self.tally.states += 1
            live = image.live_signature()
            if live not in self._known:
                self._known[live] = judge(image, promises)
            self._known[live].check(promises)
            shape = scratch_shape(image.signature())
            if shape not in self._swept:
                self._swept.add(shape)
                judge_scratch(image)

    def _go_on(self, disk: CrashDisk, life: Life, *, started: bool) -> None:
        """The disk is well again: the same life publishes, or a new one starts and publishes."""
        promises = life.promises
        if not started:
            disk = disk.kill()
            disk.on_change = promises.notice
            life = Life(disk, promises, pid=2)
        try:
            if not started:
                life.start()
            life.draw(1)
            life.snapshot()
        except (OutlastError, Fenced) as error:
            raise LawBroken("A2", f"the next publication fails: {error}") from error
        after = Life(disk.kill(), promises.frozen(), pid=3)
        after.restore()
        newest = after.loaded.cut.sequence if after.loaded is not None else 0
        require(
            "A2", newest == promises.acknowledged, message=f"the next snapshot is lost: {newest}"
        )
