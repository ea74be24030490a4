"""Mutants of the publication protocol: each omits or reorders one step, and each must be caught.

A mutant is a patch of the real durable layer, active while the crash enumeration runs; it is killed
when a law breaks on some tree. A mutant that survives would mean that the step is not needed, or
that the harness cannot see why it is. May import: `durable`, `testing.crash_*`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from unittest import mock

from outlast.durable import consumption, files, lineage, names, publish, retention
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.files import Bytes, Files
from outlast.durable.listing import read_run
from outlast.durable.manifest import (
    COMMITTED,
    MANIFEST,
    FileEntry,
    FoundCut,
    Manifest,
    RunListing,
    encode,
)
from outlast.durable.publish import TmpTree
from outlast.durable.retention import Retention, Warnings
from outlast.durable.segmentfile import SegmentFile
from outlast.durable.segments import Held, SegmentStore
from outlast.durable.snapshots import Publisher
from outlast.errors import DiskError
from outlast.model.cut import Cut
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import RUN_DIR
from outlast.testing.crash_image import FileNode
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script, long_script, short_script

Patch = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed step. `script` is the shortest life that shows it."""

    name: str
    patch: Patch
    script: Script = short_script
    retries_fsync: bool = False
    """Needs an fsync that fails: see `crashes`."""


def _quiet(self: object, *args: object, **kwargs: object) -> None:
    """Do nothing."""


# ------------------------------------------------------------------ fsyncs that are left out


def skipping_fsync(skip: Callable[[str], bool]) -> Patch:
    """fsync through the writing descriptor does nothing for paths that `skip` names."""
    original = CrashDisk.fsync_node

    def fsync_node(self: CrashDisk, node: FileNode, *, path: PurePosixPath) -> None:
        if not skip(str(path)):
            original(self, node, path=path)

    return lambda: mock.patch.object(CrashDisk, "fsync_node", fsync_node)


def skipping_fsync_dir(skip: Callable[[str], bool]) -> Patch:
    original = CrashDisk.fsync_dir

    def fsync_dir(self: CrashDisk, path: PurePosixPath, /) -> None:
        if not skip(str(path)):
            original(self, path)

    return lambda: mock.patch.object(CrashDisk, "fsync_dir", fsync_dir)


def _is_payload(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return "/snapshots/tmp_" in path and name not in (MANIFEST, COMMITTED)


def _no_directory_sync_before_marker() -> AbstractContextManager[object]:
    return mock.patch.object(TmpTree, "sync_directories", _quiet)


def _nested_directories_forgotten() -> AbstractContextManager[object]:
    def only_top(self: TmpTree, directories: Sequence[PurePosixPath]) -> None:
        self._files.fsync_dir(directories[-1])

    return mock.patch.object(TmpTree, "sync_directories", only_top)


def _commit_without(*, after_marker: bool = False, parent: bool = False) -> Patch:
    """`TmpTree.commit` without one of its last two directory syncs."""

    def commit(self: TmpTree, manifest: Manifest, *to: PurePosixPath) -> None:
        (live,) = to
        directories, _ = files.walk(self._files, self.directory)
        data = encode(manifest)
        self.write_manifest(data)
        self.sync_directories(directories)
        self.write_marker(data)
        if not after_marker:
            self._files.fsync_dir(self.directory)
        self._files.rename(self.directory, live)
        if not parent:
            self._files.fsync_dir(live.parent)

    return lambda: mock.patch.object(TmpTree, "commit", commit)


def _rename_before_marker() -> AbstractContextManager[object]:
    def commit(self: TmpTree, manifest: Manifest, *to: PurePosixPath) -> None:
        (live,) = to
        directories, _ = files.walk(self._files, self.directory)
        data = encode(manifest)
        self.write_manifest(data)
        self.sync_directories(directories)
        self._files.rename(self.directory, live)
        self.directory = live
        self.write_marker(data)
        self._files.fsync_dir(live)
        self._files.fsync_dir(live.parent)

    return mock.patch.object(TmpTree, "commit", commit)


def _number_not_spent() -> AbstractContextManager[object]:
    def open_unsynced(self: TmpTree) -> None:
        self._files.mkdir(self.directory)

    return mock.patch.object(TmpTree, "open", open_unsynced)


def _new_directory_unsynced() -> AbstractContextManager[object]:
    def make(disk: Files, path: PurePosixPath) -> None:
        if not disk.exists(path):
            disk.mkdir(path)

    stack = contextlib.ExitStack()
    for module in (lineage, consumption):
        stack.enter_context(mock.patch.object(module, "make_directory", make))
    return stack


def _adoption_unsynced() -> AbstractContextManager[object]:
    def publish_file(disk: Files, path: PurePosixPath, *, data: bytes) -> None:
        temporary = publish._spare_name(disk, path)
        files.write_file(disk, temporary, data=data)
        disk.link(temporary, path)
        disk.unlink(temporary)

    return mock.patch.object(lineage, "publish_file", publish_file)


def _record_in_place() -> AbstractContextManager[object]:
    def publish_file(disk: Files, path: PurePosixPath, *, data: bytes) -> None:
        files.write_file(disk, path, data=data)
        disk.fsync_dir(path.parent)

    return mock.patch.object(lineage, "publish_file", publish_file)


def _shards_unsynced() -> AbstractContextManager[object]:
    return mock.patch.object(CrashDisk, "fsync_file", _quiet)


# --------------------------------------------------------------------------- retention


def _retention_before_publication() -> AbstractContextManager[object]:
    original = Publisher.publish_snapshot

    def publish(self: Publisher, tree: TmpTree, *, cut: Cut, **rest: object) -> Manifest:
        listing = read_run(self._files, self._run_dir, verify="manifest")
        held = [f for f in lineage.lineage_cuts(listing) if "snapshots" in f.path.parts]
        self._retention._remove(listing, held)
        return original(self, tree, cut=cut, **rest)  # type: ignore[arg-type]

    return mock.patch.object(Publisher, "publish_snapshot", publish)


def _retention_in_place() -> AbstractContextManager[object]:
    def throw_away(self: Retention, found: FoundCut) -> PurePosixPath:
        return self._run_dir / found.path

    return mock.patch.object(Retention, "_throw_away", throw_away)


def _rename_unsynced_before_deletion() -> AbstractContextManager[object]:
    def delete(self: Retention, trees: Iterator[PurePosixPath]) -> Warnings:
        for path in trees:
            self._remove_one(path)
            self._files.fsync_dir(path.parent)
        return ()

    return mock.patch.object(Retention, "_delete", delete)


def _anchor_deleted() -> AbstractContextManager[object]:
    def removable(checkpoints: Iterator[FoundCut], **_: object) -> tuple[FoundCut, ...]:
        return tuple(checkpoints)[:-1]

    return mock.patch.object(retention, "removable_checkpoints", removable)


def _newest_removed() -> AbstractContextManager[object]:
    original = Retention._remove

    def remove(self: Retention, listing: RunListing, *_: object) -> Warnings:
        found = [f for f in listing.cuts if "snapshots" in f.path.parts]
        return original(self, listing, found[-1:])

    return mock.patch.object(Retention, "_remove", remove)


# ----------------------------------------------------------------- segments, log, start


def _unfinished_segment_linked() -> AbstractContextManager[object]:
    def finish(self: SegmentFile) -> None:
        self.sha256 = self._digest.hexdigest()  # no end mark, no sync

    return mock.patch.object(SegmentFile, "finish", finish)


def _append_after_link() -> AbstractContextManager[object]:
    original = SegmentStore.append
    roll = SegmentStore._roll

    def keep_open(self: SegmentStore) -> None:
        segment = self._open
        roll(self)
        self._mutant_last = segment  # type: ignore[attr-defined]

    def append(self: SegmentStore, rows: Sequence[Held]) -> None:
        last = getattr(self, "_mutant_last", None)
        if last is not None:
            node = self._files._file(last.path)  # type: ignore[attr-defined]
            self._files.write_node(node, b"more", path=last.path)  # type: ignore[attr-defined]
        original(self, rows)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(SegmentStore, "_roll", keep_open))
    stack.enter_context(mock.patch.object(SegmentStore, "append", append))
    return stack


def _log_after_marker() -> AbstractContextManager[object]:
    original = TmpTree.commit

    def commit(self: TmpTree, manifest: Manifest, *to: PurePosixPath) -> None:
        (live,) = to
        original(self, manifest, live)
        _late_logs.pop().sync(manifest.log.length)

    def remember(self: Publisher, cut: Cut) -> None:
        _late_logs.append(self._log)

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(TmpTree, "commit", commit))
    stack.enter_context(mock.patch.object(Publisher, "_sync_log", remember))
    return stack


_late_logs: list[ConsumptionLog] = []


def _sweep_before_adoption() -> AbstractContextManager[object]:
    original = Life.restore

    def restore(self: Life) -> None:
        Retention(self.files, RUN_DIR, fence=_NoFence()).sweep()
        original(self)

    return mock.patch.object(Life, "restore", restore)


def _segments_rebuilt_before_adoption() -> AbstractContextManager[object]:
    original = Life.restore

    def restore(self: Life) -> None:
        original(self)
        self.store.adopt()

    return mock.patch.object(Life, "restore", restore)


class _NoFence:
    def check(self) -> None:
        pass


def _manifest_overwritten() -> AbstractContextManager[object]:
    """The newest snapshot is brought up to date in place instead of publishing a new one."""

    def commit(self: TmpTree, manifest: Manifest, *to: PurePosixPath) -> None:
        (live,) = to
        original(self, manifest, live)
        data = encode(manifest)
        disk = self._files
        disk.unlink(live / MANIFEST)
        files.write_file(disk, live / MANIFEST, data=data)
        disk.fsync_dir(live)

    original = TmpTree.commit
    return mock.patch.object(TmpTree, "commit", commit)


def _bundle_linked() -> AbstractContextManager[object]:
    original = SegmentStore.save

    def save(self: SegmentStore, *what: object, link: bool) -> tuple[FileEntry, ...]:
        return original(self, *what, link=True)  # type: ignore[arg-type]

    return mock.patch.object(SegmentStore, "save", save)


def _failed_fsync_retried() -> AbstractContextManager[object]:
    def write_file(disk: Files, path: PurePosixPath, *, data: Bytes) -> None:
        writer = disk.create(path)
        writer.write(data)
        with contextlib.suppress(DiskError):
            writer.fsync()
        writer.fsync()
        writer.close()

    return mock.patch.object(publish, "write_file", write_file)


def _deletion_unsynced() -> AbstractContextManager[object]:
    def delete(self: Retention, trees: Iterator[PurePosixPath]) -> Warnings:
        for path in trees:
            self._files.fsync_dir(path.parent)
            self._remove_one(path)
        return ()

    return mock.patch.object(Retention, "_delete", delete)


EQUIVALENT: tuple[Mutant, ...] = (Mutant("no parent fsync after a deletion", _deletion_unsynced),)
"""Break no law: docs/decisions/003-what-the-crash-disk-assumes.md says why."""

MUTANTS: tuple[Mutant, ...] = (
    Mutant("no payload fsync", skipping_fsync(_is_payload)),
    Mutant("no manifest fsync", skipping_fsync(lambda p: p.endswith(MANIFEST))),
    Mutant("no marker fsync", skipping_fsync(lambda p: p.endswith(COMMITTED))),
    Mutant("trainer shards not synced when sealed", _shards_unsynced),
    Mutant("no directory fsync before the marker", _no_directory_sync_before_marker),
    Mutant("nested directory not synced", _nested_directories_forgotten),
    Mutant("no directory fsync after the marker", _commit_without(after_marker=True)),
    Mutant("no parent fsync after the rename", _commit_without(parent=True)),
    Mutant("rename before the marker", _rename_before_marker),
    Mutant("a number is not spent before use", _number_not_spent),
    Mutant("a new directory is not synced into its parent", _new_directory_unsynced),
    Mutant("adoption not synced", _adoption_unsynced),
    Mutant("a record is written in place", _record_in_place),
    Mutant("in-place overwrite of a live tree", _manifest_overwritten),
    Mutant("retention before publication", _retention_before_publication),
    Mutant("retention without rename", _retention_in_place),
    Mutant("no fsync between rename and deletion", _rename_unsynced_before_deletion),
    Mutant("retention removes the newest", _newest_removed),
    Mutant("retention deletes an anchor in use", _anchor_deleted, long_script),
    Mutant("retry after a failed fsync", _failed_fsync_retried, retries_fsync=True),
    Mutant("link of an unfinished segment", _unfinished_segment_linked),
    Mutant("link of an unsynced segment", skipping_fsync(lambda p: "/seg_i" in p)),
    Mutant("append after link", _append_after_link),
    Mutant("bundled cut links instead of copying", _bundle_linked),
    Mutant("consumption log synced after COMMITTED", _log_after_marker, long_script),
    Mutant(
        "consumption log never synced",
        skipping_fsync(lambda p: f"/{names.CONSUMPTION}/" in p),
        long_script,
    ),
    Mutant("sweep before adoption", _sweep_before_adoption),
    Mutant("segments rebuilt before adoption", _segments_rebuilt_before_adoption),
)
