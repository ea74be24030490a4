"""Harness (a) for what is built beside its name: forks of a run and exports of a model.

Killed at any operation, with any loss that the disk models allow, the source stays as it was and
the new directory is absent or whole; the next try to the same name goes through, or refuses because
the first one got there. The same after every I/O error, and when two build at once.
May import: `durable`, `testing.crash_*`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from outlast.durable.audit import audit_run
from outlast.durable.cutcodec import load_cut
from outlast.durable.fork import STAGING, fork_run
from outlast.durable.listing import read_run
from outlast.durable.manifest import FoundCut
from outlast.durable.names import LOCK
from outlast.durable.segmentfile import read_saved
from outlast.durable.staging import staged
from outlast.errors import DiskError, NotRestorable
from outlast.rows import row_digest
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_enumeration import Tally, tree_states
from outlast.testing.crash_facts import RUN_DIR, Promises, make_world
from outlast.testing.crash_image import Image, Signature
from outlast.testing.crash_laws import LawBroken, judge, require
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script, short_script

NEW = RUN_DIR.parent / "new"
ASIDE = RUN_DIR.parent / "aside"
ORDERED_CAP = 96


@dataclass(frozen=True, slots=True)
class Making:
    """One kind of building: `make` fills NEW, `expect_whole` raises LawBroken when it is not."""

    name: str
    source: Image
    make: Callable[[CrashDisk, int], None]
    """Arguments: the disk and the pid of who builds."""
    expect_whole: Callable[[CrashDisk], None]
    staging: str


# ------------------------------------------------------------------------------- fork, export


def forking(script: Script, *, cut: str) -> Making:
    """Forks at `cut` of the run that `script` leaves."""
    disk, promises = CrashDisk(), Promises()
    disk.on_change = promises.notice
    life = Life(disk, promises)
    life.start()
    script(life)
    image = disk.visible()

    def found(on: CrashDisk) -> FoundCut:
        cuts = read_run(on, RUN_DIR, verify="manifest").cuts
        return next(one for one in cuts if one.path.name == cut)

    def make(on: CrashDisk, pid: int) -> None:
        fork_run(on, RUN_DIR, new_dir=NEW, found=found(on), world=make_world(pid=pid))

    def expect_whole(on: CrashDisk) -> None:
        _judge_fork(on, found(on))

    return Making(f"fork at {cut}", image, make, expect_whole, STAGING)


def _judge_fork(disk: CrashDisk, source: FoundCut) -> None:
    """NEW audits clean, holds what the cut holds, and goes on as a run of its own (A1 to A6)."""
    report = audit_run(disk, NEW)
    require("A3", report.ok, message=f"the fork does not audit: {report.violations}")
    listing = read_run(disk, NEW, verify="payload")
    require("A3", len(listing.cuts) == 1, message=f"the fork holds {listing.cuts}")
    new, old = load_cut(disk, NEW, found=listing.cuts[0]), load_cut(disk, RUN_DIR, found=source)
    require("A1", new.cut.groups == old.cut.groups, message="groups differ")
    rows = [read_saved(disk, cut.rows).rows for cut in (old, new)]
    require("A1", _digests(rows[0].values()) == _digests(rows[1].values()), message="rows differ")
    same = _digests(old.prefixes) == _digests(new.prefixes)
    require("A1", same, message="prefixes differ")
    moved = CrashDisk(disk.visible())
    moved.rename(RUN_DIR, ASIDE)
    moved.rename(NEW, RUN_DIR)
    sequence = int(new.cut.sequence)
    held = Promises(cuts={sequence: new.cut}, acknowledged=sequence, spent=sequence, adopted=2)
    judge(moved.visible(), held).check(held)


def _digests(rows: object) -> dict[object, str]:
    return {row.key: row_digest(row) for row in rows}  # type: ignore[attr-defined]


_MODEL = {"config.json": b"{}", "model.safetensors": b"weights " * 40, "deep/tokenizer.json": b"[]"}


def exporting() -> Making:
    """A model directory written by another package, which syncs nothing."""
    disk = CrashDisk()
    for path in (RUN_DIR.parent, RUN_DIR):
        disk.mkdir(path)

    def make(on: CrashDisk, pid: int) -> None:
        world = make_world(pid=pid)
        with staged(on, NEW, suffix=".exporting", world=world, sync=True) as directory:
            on.mkdir(directory / "deep")
            for name, data in _MODEL.items():
                writer = on.create(directory / name)
                writer.write(data)
                writer.close()

    def expect_whole(on: CrashDisk) -> None:
        for name, data in _MODEL.items():
            held = on.exists(NEW / name) and on.read(NEW / name) == data
            require("A3", held, message=f"{NEW / name} is not whole")

    return Making("export", disk.visible(), make, expect_whole, ".exporting")


@cache
def all_makings() -> tuple[Making, ...]:
    """A checkpoint with unfinished attempts, a snapshot before any checkpoint, an export."""

    def before_training(life: Life) -> None:
        life.draw(2)
        life.begin(1)
        life.snapshot()

    return (
        forking(short_script, cut="step_000001"),
        forking(before_training, cut="snapshot_000001"),
        exporting(),
    )


# -------------------------------------------------------------------------------- judgement


class MakingJudge:
    """Holds what a kill left against the promises; knows trees that it has seen."""

    def __init__(self, making: Making) -> None:
        self.making = making
        self.tally = Tally()
        self._source = _below(making.source.signature(), RUN_DIR)
        self._known: set[Signature] = set()
        self._tried: set[object] = set()
        self._whole: set[Signature] = set()

    def look(self, image: Image, *, model: str, done: bool) -> None:
        """Judge one tree. `done`: the building was acknowledged. Raises LawBroken."""
        self.tally.states[model] += 1
        signature = image.signature()
        whole = bool(_below(signature, NEW))
        require("A2", whole or not done, message=f"{NEW} was acknowledged and is gone")
        if signature in self._known:
            return
        self._known.add(signature)
        self.tally.different += 1
        same = _below(signature, RUN_DIR) == self._source
        require("A6", same, message="the source was changed")
        if whole:
            self._expect_whole(image)
        scaffold = f"{NEW}{self.making.staging}"
        paths = tuple(path for path, _ in signature if path.startswith(scaffold))
        shape = (paths, whole, dict(signature).get(f"{scaffold}/{LOCK}"))
        if shape not in self._tried:  # the next try reads nothing else of what was left
            self._tried.add(shape)
            self._try_again(image, whole=whole)

    def _expect_whole(self, image: Image) -> None:
        new = _below(image.signature(), NEW)
        if new not in self._whole:
            self.tally.judged += 1
            try:
                self.making.expect_whole(CrashDisk(image))
            except LawBroken:
                raise
            except Exception as error:  # boundary: judge of torn trees
                raise LawBroken("A3", f"{NEW} is not whole: {error!r}") from error
            self._whole.add(new)

    def _try_again(self, image: Image, *, whole: bool) -> None:
        disk = CrashDisk(image)
        try:
            self.making.make(disk, 3)
            refused = None
        except (NotRestorable, DiskError) as error:
            refused = str(error)
        after = disk.visible()
        if not whole:
            require("A4", refused is None, message=f"the next try is refused: {refused}")
            left = disk.exists(NEW.parent / f"{NEW.name}{self.making.staging}")
            require("A4", not left, message="the next try leaves its scaffold behind")
            self._expect_whole(after)
        else:
            same = _below(after.signature(), NEW) == _below(image.signature(), NEW)
            require("A5", refused is not None and same, message=f"{NEW} was made twice")


def _below(signature: Signature, top: PurePosixPath) -> Signature:
    return tuple(entry for entry in signature if entry[0].startswith(f"{top}/"))


def enumerate_making(
    making: Making, *, models: str = "KOP", empty: bool = False, tally: Tally | None = None
) -> Tally:
    """All crash states of one building; with `empty`, NEW is an empty directory before."""
    disk = CrashDisk(_prepared(making, empty=empty))
    judge_of = MakingJudge(making)
    judge_of.tally = tally if tally is not None else judge_of.tally
    broken: list[LawBroken] = []

    def look(change: str, *, done: bool = False) -> None:
        judge_of.tally.points += 1
        for model, image in tree_states(disk, models, ordered_cap=ORDERED_CAP):
            judge_of.look(image, model=model, done=done)

    def look_once(change: str) -> None:
        if not broken:  # clean-up code still runs after a law broke
            try:
                look(change)
            except LawBroken as error:
                broken.append(error)
                raise

    disk.on_change = look_once
    making.make(disk, 2)
    look("", done=True)
    return judge_of.tally


def _prepared(making: Making, *, empty: bool) -> Image:
    disk = CrashDisk(making.source)
    if empty:
        disk.mkdir(NEW)
    return disk.visible()


def fail_making(making: Making, *, stride: int = 1) -> int:
    """Every call fails, once or for good, in each way; returns the faults that fired."""
    disk = CrashDisk(making.source)
    making.make(disk, 2)
    fired = 0
    judge_of = MakingJudge(making)
    for at in range(0, disk.calls, stride):
        for kind in FaultKind:
            for persistent in (False, True):
                fired += _fail_once(judge_of, Fault(at, kind, persistent=persistent))
    return fired


def _fail_once(judge_of: MakingJudge, fault: Fault) -> int:
    disk = CrashDisk(judge_of.making.source)
    disk.fault = fault
    done = True
    try:
        judge_of.making.make(disk, 2)
    except (DiskError, NotRestorable):
        done = False
    disk.fault = None
    try:
        for model, image in tree_states(disk, "KO", ordered_cap=8):
            judge_of.look(image, model=model, done=done)
    except LawBroken as error:
        raise LawBroken(error.law, f"after {fault}: {error}") from error
    return 1 if disk.faults_hit else 0


def make_twice(making: Making, *, stride: int = 1) -> dict[str, int]:
    """A second builder comes before every single call of the first; exactly one of them succeeds.

    Returns how often each one won.
    """
    calls, judge_of = _calls(making), MakingJudge(making)
    won = {"first": 0, "second": 0}
    for at in range(0, calls, stride):
        won[_race(judge_of, at)] += 1
    return won


def _calls(making: Making) -> int:
    disk = CrashDisk(making.source)
    making.make(disk, 2)
    return disk.calls


def _race(judge_of: MakingJudge, at: int) -> str:
    making = judge_of.making
    disk = CrashDisk(making.source)
    winners: list[str] = []

    def make(who: str, pid: int) -> None:
        try:
            making.make(disk, pid)
        except (NotRestorable, DiskError):
            return
        winners.append(who)

    def interrupt() -> None:
        if disk.calls == at:
            disk.guard = lambda: None
            make("second", 3)

    disk.guard = interrupt
    make("first", 2)
    where = f"the second came before call {at}"
    require("A5", len(winners) == 1, message=f"{where}: {winners or 'nobody'} succeeded")
    try:
        judge_of.look(disk.visible(), model="K", done=True)
    except LawBroken as error:
        raise LawBroken(error.law, f"{where}: {error}") from error
    return winners[0]
