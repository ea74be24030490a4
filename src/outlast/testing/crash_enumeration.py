"""Harness (a): run a scripted life, stop at every change of the disk, judge every crash state.

Trees that no program can tell apart are judged once, and held against what was promised whenever
they occur. May import: `testing.crash_*`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import Promises
from outlast.testing.crash_image import Image, rotten_images
from outlast.testing.crash_laws import (
    LawBroken,
    Verdict,
    judge,
    judge_rot,
    judge_scratch,
    scratch_shape,
)
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script

ORDERED_CAP = 4096
WEAK_CAP = 24


@dataclass
class Tally:
    """How many states were generated per model, and how many of them differ.

    `judged` counts those that differ outside scratch trees: they went through a whole new life.
    """

    states: Counter[str] = field(default_factory=Counter)
    different: int = 0
    judged: int = 0
    points: int = 0
    rot: Counter[str] = field(default_factory=Counter)
    rotten: set[str] = field(default_factory=set)
    """Names of the files that model R damaged."""

    def line(self) -> str:
        """One line for a test summary."""
        models = ", ".join(f"{model} {self.states[model]:,}" for model in sorted(self.states))
        rot = f"; rot {dict(self.rot)}" if self.rot else ""
        differ = f"{self.different:,} differ, {self.judged:,} of them outside scratch trees"
        return f"{self.points:,} crash points; states: {models}; {differ}{rot}"


def tree_states(
    disk: CrashDisk, models: str, *, ordered_cap: int = ORDERED_CAP, weak_cap: int = WEAK_CAP
) -> Iterator[tuple[str, Image]]:
    """(model, tree) for every tree that a crash at this instant could leave."""
    if "K" in models:
        yield "K", disk.visible()
    if "O" in models:
        for image in disk.ordered(cap=ordered_cap):
            yield "O", image
    if "P" in models:
        for image in disk.weak(cap=weak_cap):
            yield "P", image


class Enumeration:
    """Judges the crash states of one script as it runs. Raises LawBroken at the first violation."""

    def __init__(
        self,
        *,
        models: str = "KOP",
        weak_cap: int = WEAK_CAP,
        judge_state: Callable[[Image, Promises], Verdict] = judge,
    ) -> None:
        self.tally = Tally()
        self._models = models
        self._weak_cap = weak_cap
        self._judge = judge_state
        self._known: dict[object, Verdict] = {}
        self._seen: dict[object, object] = {}
        self._swept: set[object] = set()
        self._broken = False

    def run(
        self,
        script: Script,
        *,
        image: Image | None = None,
        promises: Promises | None = None,
        make_life: Callable[..., Life] = Life,
    ) -> tuple[CrashDisk, Promises]:
        """One life from its start through `script`, on an empty disk or on `image`."""
        disk = CrashDisk(image)
        held = promises or Promises()
        life = make_life(disk, held)

        def look(change: str) -> None:
            held.notice(change)
            if not self._broken:  # clean-up code still runs after a law broke
                self._look(disk, held)

        disk.on_change = look
        life.start()
        script(life)
        self._look(disk, held)
        return disk, held

    def _look(self, disk: CrashDisk, promises: Promises) -> None:
        self.tally.points += 1
        try:
            self._judge_states(disk, promises)
        except LawBroken:
            self._broken = True
            raise

    def _judge_states(self, disk: CrashDisk, promises: Promises) -> None:
        for model, image in tree_states(disk, self._models, weak_cap=self._weak_cap):
            self.tally.states[model] += 1
            whole = image.signature()
            if whole in self._seen:
                self._known[self._seen[whole]].check(promises)
                continue
            self.tally.different += 1
            live = self._seen[whole] = image.live_signature()
            if live not in self._known:
                self.tally.judged += 1
                self._known[live] = self._judge(image, promises)
            shape = scratch_shape(whole)
            if shape not in self._swept:
                self._swept.add(shape)
                judge_scratch(image)
            self._known[live].check(promises)

    def rot(self, disk: CrashDisk, promises: Promises) -> None:
        """Model R on the tree as it stands."""
        for what, image in rotten_images(disk.visible()):
            self.tally.states["R"] += 1
            self.tally.rotten.add(PurePosixPath(what.split(" ")[0]).name)
            self.tally.rot[judge_rot(what, image, promises=promises)] += 1
