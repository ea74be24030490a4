"""Deleting what is no longer needed, so that a live name never lies (DESIGN 10).

    fencing check; rename victim to trash_N; fsync parent; delete; fsync parent

Only after the newer cut was acknowledged; never the newest verified one; only cuts of the own
lineage. A failure is returned as a warning and retried by the next call: it must not fail a save
or stop training. Keeps A2, A3, S12. May import: `files`, `listing`, `lineage`, `anchors`, `names`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.anchors import Score, removable_checkpoints
from outlast.durable.files import Files, remove_tree
from outlast.durable.lineage import lineage_cuts
from outlast.durable.listing import read_run
from outlast.durable.manifest import FoundCut, RunListing, TreeKind
from outlast.durable.publish import Fence
from outlast.errors import DiskError, InvariantError
from outlast.model.ids import Sequence as CutSequence
from outlast.model.ids import TrainerVersion
from outlast.world import Perhaps, no_mark

Warnings = tuple[str, ...]


class Retention:
    """Removes cuts of one run directory on behalf of its owner."""

    def __init__(
        self, files: Files, run_dir: PurePosixPath, *, fence: Fence, mark: Perhaps = no_mark
    ) -> None:
        self._files = files
        self._run_dir = run_dir
        self._fence = fence
        self._mark = mark

    def snapshots(self, *, keep_latest_k: int) -> Warnings:
        """Keep the newest `keep_latest_k` >= 1 verified snapshots of the lineage."""
        if keep_latest_k < 1:
            raise InvariantError(
                f"keep_latest_k is {keep_latest_k}; the newest cut is never removed"
            )
        listing = read_run(self._files, self._run_dir, verify="manifest")
        return self._remove(listing, superseded_snapshots(listing, keep_latest_k))

    def checkpoints(
        self,
        *,
        pinned: Collection[TrainerVersion],
        keep_top_k: int,
        score: Score,
    ) -> Warnings:
        """Remove trainer checkpoints nothing needs; see `anchors.removable_checkpoints`."""
        listing = read_run(self._files, self._run_dir, verify="manifest")
        victims = superseded_checkpoints(listing, pinned=pinned, keep_top_k=keep_top_k, score=score)
        return self._remove(listing, victims)

    def sweep(self) -> Warnings:
        """Remove ``tmp_*`` and ``trash_*`` everywhere. Only after adoption; idempotent."""
        listing = read_run(self._files, self._run_dir, verify="names")
        return self._delete(self._run_dir / path for path in listing.debris)

    def _remove(self, listing: RunListing, victims: Sequence[FoundCut]) -> Warnings:
        leftover = [self._run_dir / p for p in listing.debris if p.name.startswith("trash_")]
        warnings = self._delete(leftover)
        for found in victims:
            self._fence.check()
            try:
                trash = self._throw_away(found)
            except DiskError as error:
                warnings += (f"retention of {found.path} failed, tried again later: {error}",)
                continue
            warnings += self._delete([trash])
        return warnings

    def _throw_away(self, found: FoundCut) -> PurePosixPath:
        live = self._run_dir / found.path
        trash = live.parent / _trash_name(found)
        self._files.rename(live, trash)
        self._mark("retain.after_rename")
        return trash

    def _delete(self, trees: Iterable[PurePosixPath]) -> Warnings:
        """Delete trees whose names do not count; their renaming is made durable first."""
        warnings: list[str] = []
        for path in trees:
            self._fence.check()
            try:
                self._files.fsync_dir(path.parent)
                self._remove_one(path)
                self._files.fsync_dir(path.parent)
            except (DiskError, FileNotFoundError) as error:
                warnings.append(f"removing {path} failed, tried again later: {error}")
        return tuple(warnings)

    def _remove_one(self, path: PurePosixPath) -> None:
        if self._files.stat(path).is_dir:
            remove_tree(self._files, path)
        else:
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(path)


def superseded_snapshots(listing: RunListing, keep_latest_k: int) -> tuple[FoundCut, ...]:
    """Verified snapshots of the lineage but the newest `keep_latest_k` >= 1, oldest first."""
    held = [f for f in lineage_cuts(listing) if f.kind is TreeKind.SNAPSHOT]
    return tuple(held[:-keep_latest_k])


def superseded_checkpoints(
    listing: RunListing, *, pinned: Collection[TrainerVersion], keep_top_k: int, score: Score
) -> tuple[FoundCut, ...]:
    """Trainer checkpoints of the lineage that nothing needs, oldest first."""
    held = [f for f in lineage_cuts(listing) if f.kind is TreeKind.TRAINER_CHECKPOINT]
    standing = [f for f in listing.cuts if f.kind is TreeKind.SNAPSHOT]
    return removable_checkpoints(
        held, snapshots=standing, pinned=pinned, keep_top_k=keep_top_k, score=score
    )


def _trash_name(found: FoundCut) -> str:
    sequence = found.manifest.sequence if found.manifest is not None else CutSequence(0)
    if found.kind is TreeKind.SNAPSHOT:
        return names.snapshot_debris("trash", sequence)
    return names.checkpoint_debris("trash", TrainerVersion(found.number), sequence=sequence)
