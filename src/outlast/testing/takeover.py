"""Two controllers in virtual time: one stands still, another takes over, the first wakes up.

    replaced = take_over(sim)     # another host, or a lease that ran out; the new life begins
    sim.run_until(seconds=3)
    replaced.wake(seconds=30)     # the old one goes on where it stood
    assert replaced.ended.how == "Fenced"

The old one keeps its clock, its engine and its memory, and shares the disk. No law watches it any
more: that the new one keeps all of them is what it is judged by (S1 to S14, A1 to A6).
May import: `testing`.
"""

from __future__ import annotations

from outlast.testing.crash_disk import CrashDisk
from outlast.testing.endings import Ended, judge_end
from outlast.testing.life import SimLife
from outlast.testing.simulation import Simulation
from outlast.testing.world import Marks


class Replaced:
    """A life that another one has taken over from."""

    def __init__(self, life: SimLife, disk: CrashDisk, *, marks: Marks) -> None:
        self._life = life
        self._marks = marks
        self.disk = disk
        """What both write to, until the new life ends: a later one gets a disk of its own."""
        self.ended: Ended | None = None
        """How it ended; None while it has not."""

    def wake(self, *, seconds: float) -> None:
        """Let it go on for so many virtual seconds, or to its end."""
        life, disk, marks = self._life, self.disk, self._marks
        guard, changed, pulse = disk.guard, disk.on_change, marks.pulse
        disk.guard, disk.on_change, marks.pulse = life.pulse.check, _unwatched, life.pulse
        try:
            life.loop.advance(lambda: life.over, before=life.loop.time() + seconds)
        finally:
            disk.guard, disk.on_change, marks.pulse = guard, changed, pulse
        if life.over and self.ended is None:
            self.ended = judge_end(life)
            life.end(self.ended.how)


def take_over(sim: Simulation) -> Replaced:
    """The life of `sim` stands still from now on, and a new one begins on the same disk."""
    replaced = Replaced(sim.leave_behind(), sim.disk, marks=sim.marks)
    sim.disk.unlock_all()
    sim.resume()
    return replaced


def _unwatched(_: str) -> None:
    """Changes of the replaced one are no business of the laws about the new one."""
