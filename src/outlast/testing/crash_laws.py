"""The publication laws A1-A6, judged on one tree that a crash left behind.

- **A1** what is restored is bit-exact. **A2** an acknowledged cut, or a newer one, is restorable.
- **A3** every live name is whole. **A4** the sweep converges and is idempotent.
- **A5** numbers never return. **A6** restore changes nothing before adoption.

Each judgement runs the real reader, planner, loader, adoption and publisher on the tree.
May import: `durable`, `testing.crash_*`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.durable import names
from outlast.durable.consumption import read_log
from outlast.durable.listing import read_run
from outlast.durable.manifest import RunListing, TreeKind
from outlast.durable.restore import Resume
from outlast.durable.retention import Retention
from outlast.durable.segments import SegmentStore
from outlast.errors import OutlastError
from outlast.model.cut import AnchorKind
from outlast.model.ids import Incarnation
from outlast.rows import row_digest
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import RUN_DIR, Promises, prefix_of
from outlast.testing.crash_image import Image, Signature, is_scratch
from outlast.testing.crash_scenario import Life


class LawBroken(AssertionError):
    """A law does not hold on a tree."""

    def __init__(self, law: str, message: str) -> None:
        super().__init__(f"{law}: {message}")
        self.law = law


def require(law: str, condition: bool, *, message: str) -> None:
    if not condition:
        raise LawBroken(law, message)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a tree gave, to be held against what was promised when the crash came."""

    restored: int
    """Sequence of the restored cut; 0 for a fresh start."""
    incarnation: int
    first_sequence: int

    def check(self, promises: Promises) -> None:
        """A2 and A5 for these promises. Raises LawBroken."""
        acknowledged = promises.acknowledged
        what = self.restored or "nothing"
        require(
            "A2",
            self.restored >= acknowledged,
            message=f"cut {acknowledged} was acknowledged, {what} is restored",
        )
        require(
            "A5",
            self.incarnation > promises.adopted,
            message=f"incarnation {self.incarnation} again",
        )
        require(
            "A5",
            self.first_sequence > promises.spent,
            message=f"sequence {self.first_sequence} returns, {promises.spent} was visible",
        )


def judge(image: Image, promises: Promises, *, make_life: Callable[..., Life] = Life) -> Verdict:
    """Everything that holds for a tree of model K, O or P by itself. Raises LawBroken."""
    _judge_names(image)
    disk = CrashDisk(image)
    life = make_life(disk, promises.frozen(), pid=2)
    try:
        _judge_restore(disk, life, promises=promises)
        life.adopt()
        _judge_sweep(disk, life)
        _judge_next(disk, life)
    except OutlastError as error:
        raise LawBroken("A2", f"{type(error).__name__}: {error}") from error
    assert life.adoption is not None
    record = life.adoption.record
    return Verdict(record.restored_from or 0, record.number, record.first_sequence)


def scratch_shape(signature: Signature) -> tuple[str, ...]:
    """Paths below scratch names: all that a sweep depends on, since it reads no content there."""
    return tuple(path for path, _ in signature if _in_scratch(path))


def judge_scratch(image: Image) -> None:
    """A4 for what lies below scratch names: the sweep removes it and touches nothing else."""
    disk = CrashDisk(image)
    if not disk.exists(RUN_DIR):
        return
    retention = Retention(disk, RUN_DIR, fence=_NoFence())
    store = SegmentStore(disk, RUN_DIR / names.SEGMENTS, incarnation=Incarnation(99))
    before = [entry for entry in image.live_signature() if not _in_scratch(entry[0])]
    warnings = retention.sweep()
    store.adopt()
    require("A4", not warnings, message=f"the sweep warns: {warnings}")
    swept = disk.visible().signature()
    after = [entry for entry in swept if not _in_scratch(entry[0])]
    require(
        "A4", [e for e in before if e not in after] == [], message="the sweep removed a live name"
    )
    left = [path for path, _ in swept if _in_scratch(path) and not path.endswith("/segments")]
    require("A4", not left, message=f"debris stays: {left}")
    retention.sweep()
    require("A4", disk.visible().signature() == swept, message="a second sweep changes the disk")


class _NoFence:
    def check(self) -> None:
        pass


def _in_scratch(path: str) -> bool:
    return any(is_scratch(part) for part in path.split("/"))


def _judge_names(image: Image) -> None:
    try:
        listing = read_run(CrashDisk(image), RUN_DIR, verify="payload")
    except OutlastError as error:
        raise LawBroken("A3", f"{type(error).__name__}: {error}") from error
    for found in listing.cuts:
        require("A3", found.defect is None, message=str(found.defect))
    _judge_logs(image, listing)
    whole = {found.number for found in listing.cuts if found.kind is TreeKind.TRAINER_CHECKPOINT}
    for found in listing.cuts:
        anchor = None if found.manifest is None else found.manifest.anchor
        if anchor is not None and anchor.kind is AnchorKind.CHECKPOINT:
            require(
                "A3", anchor.version in whole, message=f"{found.path} has lost its anchor {anchor}"
            )


def _judge_logs(image: Image, listing: RunListing) -> None:
    """A cut whose consumption log is not durable names something that is not there."""
    disk = CrashDisk(image)
    for found in listing.cuts:
        if found.manifest is None:
            continue
        try:
            read_log(disk, RUN_DIR / names.CONSUMPTION, position=found.manifest.log)
        except OutlastError as error:
            raise LawBroken("A3", f"{found.path}: {error}") from error


def _judge_restore(disk: CrashDisk, life: Life, *, promises: Promises) -> None:
    life.take_lock()
    before = disk.visible().signature()
    life.restore()
    require("A6", disk.visible().signature() == before, message="restore changed the disk")
    _judge_content(disk, life, promises=promises)


def _judge_content(disk: CrashDisk, life: Life, *, promises: Promises) -> None:
    """A1: the cut, every row and the consumption log are what was handed to publication."""
    if life.loaded is None:
        return
    cut = life.loaded.cut
    require(
        "A1",
        promises.cuts.get(cut.sequence) == cut,
        message=f"cut {cut.sequence} reads differently",
    )
    for receipt in (r for group in cut.groups for r in group.receipts()):
        row = life.state.held[receipt.key].row
        require(
            "A1",
            row is not None and row_digest(row) == receipt.digest,
            message=f"row {receipt.key}",
        )
    _judge_prefixes(life)
    read_log(disk, RUN_DIR / names.CONSUMPTION, position=cut.log)
    if isinstance(life.plan, Resume) and life.plan.anchor_tree is not None:
        directory = RUN_DIR / life.plan.anchor_tree.path / names.TRAINER / "rank_0"
        wanted = f"weights of version {life.plan.anchor.version} in shard_1.bin".encode()
        require(
            "A1", disk.read(directory / "shard_1.bin") == wanted, message="trainer shard differs"
        )


def _judge_prefixes(life: Life) -> None:
    """A1: exactly the prefixes that the cut names, token by token."""
    assert life.loaded is not None
    loaded = {row.key: row for row in life.loaded.prefixes}
    named = life.loaded.cut.prefixes
    require("A1", loaded.keys() == {ref.key for ref in named}, message="prefixes differ")
    for ref in named:
        wanted = prefix_of(ref.key.group, ref.key.incarnation, tokens=ref.tokens)
        same = row_digest(loaded[ref.key]) == row_digest(wanted)
        require("A1", same, message=f"prefix of {ref.key}")


def _judge_sweep(disk: CrashDisk, life: Life) -> None:
    life.sweep()
    listing = read_run(disk, RUN_DIR, verify="payload")
    require("A4", not life.warnings, message=f"the sweep warns: {life.warnings}")
    require("A4", not listing.debris, message=f"debris stays: {listing.debris}")
    for found in listing.cuts:
        require("A4", found.defect is None, message=f"the sweep broke {found.path}: {found.defect}")
    swept = disk.visible().signature()
    life.sweep()
    require("A4", disk.visible().signature() == swept, message="a second sweep changes the disk")
    left = set(disk.list(RUN_DIR / names.SEGMENTS))
    placed = {life.store.place(key) for key in life.state.held}
    require(
        "A4", left == {p.segment for p in placed if p is not None}, message=f"segments stay: {left}"
    )


def _judge_next(disk: CrashDisk, life: Life) -> None:
    """The life after the crash can draw, publish, and be restored in its turn."""
    life.draw(1)
    life.snapshot()
    after = Life(disk.kill(), life.promises, pid=3)
    after.restore()
    newest = after.loaded.cut.sequence if after.loaded is not None else 0
    require(
        "A2", newest == life.promises.acknowledged, message=f"the next snapshot is lost: {newest}"
    )
    _judge_content(disk, after, promises=life.promises)


def judge_rot(what: str, image: Image, *, promises: Promises) -> str:
    """Model R on one damaged file: never loaded. Returns "fallback", "refused" or "untouched".

    Damage inside a cut must lead to another whole cut; damage to the run's own records may refuse.
    """
    disk = CrashDisk(image)
    life = Life(disk, promises.frozen(), pid=2)
    before = disk.visible().signature()
    try:
        life.restore()
        _judge_content(disk, life, promises=promises)
    except OutlastError as error:
        inside = f"{RUN_DIR}/{names.SNAPSHOTS}/" in what or f"{RUN_DIR}/step_" in what
        if inside:
            raise LawBroken("A2", f"{what}: no other cut was used: {error}") from error
        return "refused"
    require("A6", disk.visible().signature() == before, message=f"{what}: restore changed the disk")
    restored = 0 if life.loaded is None else life.loaded.cut.sequence
    require("A2", restored > 0, message=f"{what}: every cut was given up")
    return "untouched" if restored == promises.acknowledged else "fallback"
