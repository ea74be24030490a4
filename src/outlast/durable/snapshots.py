"""Publishing cuts: periodic snapshots and trainer checkpoints with their bundled cut.

Two phases, because rows and trainer shards are written by others: `open_*` gives a tree under a
``tmp_`` name, the plane and the trainer write inside, `publish_*` seals it and gives it its live
name. Synchronous; the runtime runs it off its loop. Keeps A1-A5 with `publish`, and S1, S4: the
consumption log is durable up to the cut's position before COMMITTED exists.
May import: the rest of `durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Protocol

from outlast.durable import names
from outlast.durable.ancestry import why_foreign
from outlast.durable.anchors import Score
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cutcodec import CutEncoder
from outlast.durable.files import Files
from outlast.durable.listing import find_cut, read_run
from outlast.durable.manifest import FORMAT, FileEntry, Manifest, TreeKind, sha256
from outlast.durable.prefixes import encode_prefixes
from outlast.durable.publish import Fence, TmpTree
from outlast.durable.retention import Retention, Warnings
from outlast.errors import InvariantError
from outlast.model.cut import Anchor, AnchorKind, Cut
from outlast.model.ids import Incarnation, Sequence, TrainerVersion
from outlast.rows import Row
from outlast.world import World


class SyncedFile(Protocol):
    """A file that its writer synced and digested: `ports.SavedFile` is one."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def sha256(self) -> str: ...


class Publisher:
    """The only one who gives cuts of this run a live name, on behalf of one incarnation."""

    def __init__(
        self,
        files: Files,
        run_dir: PurePosixPath,
        *,
        run: str,
        incarnation: Incarnation,
        fence: Fence,
        log: ConsumptionLog,
        world: World,
    ) -> None:
        self._files = files
        self._run_dir = run_dir
        self._run = run
        self._incarnation = incarnation
        self._fence = fence
        self._log = log
        self._world = world
        self._encoder = CutEncoder()
        self._retention = Retention(files, run_dir, fence=fence, mark=world.perhaps)

    # ---------------------------------------------------------------------------- snapshots

    def open_snapshot(self, sequence: Sequence) -> TmpTree:
        """Start the tree of a periodic snapshot; rows go below `rows_directory(tree)`."""
        parent = names.RunPaths(self._run_dir).snapshots
        return self._open(parent / names.snapshot_debris("tmp", sequence), kind="snapshot")

    def publish_snapshot(
        self,
        tree: TmpTree,
        *,
        cut: Cut,
        rows: Iterable[SyncedFile],
        fingerprint: bytes,
        recipe: bytes,
        prefixes: Iterable[Row] = (),
    ) -> Manifest:
        """Seal and publish; the snapshot is acknowledged when this returns.

        Raises InvariantError for a cut that contradicts itself, DiskFull or DiskError, Fenced. The
        caller then calls `tree.abandon()`; earlier cuts stand untouched in every case.
        """
        self._write_state(
            tree,
            "",
            cut=cut,
            rows=rows,
            prefixes=prefixes,
            fingerprint=fingerprint,
            recipe=recipe,
        )
        manifest = self._manifest(
            tree, kind=TreeKind.SNAPSHOT, cut=cut, anchor=cut.anchor, fingerprint=fingerprint
        )
        live = names.RunPaths(self._run_dir).snapshots / names.snapshot(cut.sequence)
        if self._files.exists(live):
            raise InvariantError(f"A5: {live} exists; sequence {cut.sequence} was used before")
        tree.commit(manifest, live)
        return manifest

    # ------------------------------------------------------------------ trainer checkpoints

    def open_checkpoint(self, version: TrainerVersion, *, sequence: Sequence) -> TmpTree:
        """Start the tree of ``step_N``: trainer shards go below ``trainer``, rows below
        `rows_directory(tree)` as private copies."""
        name = names.checkpoint_debris("tmp", version, sequence=sequence)
        tree = self._open(self._run_dir / name, kind="checkpoint")
        tree.mkdir(names.TRAINER)
        tree.mkdir(names.ROLLOUT_STATE)
        return tree

    def publish_checkpoint(
        self,
        tree: TmpTree,
        *,
        cut: Cut,
        rows: Iterable[SyncedFile],
        fingerprint: bytes,
        recipe: bytes,
        prefixes: Iterable[Row] = (),
        metrics: Mapping[str, float],
    ) -> Manifest:
        """Seal the trainer's files, add the bundled cut and publish ``step_N``. Raises as above."""
        tree.seal(names.TRAINER)
        self._write_state(
            tree,
            f"{names.ROLLOUT_STATE}/",
            cut=cut,
            rows=rows,
            prefixes=prefixes,
            fingerprint=fingerprint,
            recipe=recipe,
        )
        anchor = Anchor(
            kind=AnchorKind.CHECKPOINT, version=cut.trainer_version, history=cut.history
        )
        manifest = self._manifest(
            tree,
            kind=TreeKind.TRAINER_CHECKPOINT,
            cut=cut,
            anchor=anchor,
            fingerprint=fingerprint,
            metrics=metrics,
        )
        live = self._run_dir / names.checkpoint(cut.trainer_version)
        if self._files.exists(live):
            self._make_room(live, cut.trainer_version)
        tree.commit(manifest, live)
        return manifest

    def _make_room(self, live: PurePosixPath, version: TrainerVersion) -> None:
        """Rename an off-lineage or damaged ``step_N`` away; one of our own is never touched."""
        listing = read_run(self._files, self._run_dir, verify="names")
        found = find_cut(
            self._files,
            self._run_dir,
            path=PurePosixPath(live.name),
            kind=TreeKind.TRAINER_CHECKPOINT,
            number=version,
            run=listing.run,
            verify="manifest",
        )
        manifest = None if found is None else found.manifest
        if manifest is not None and why_foreign(listing, manifest) is None:
            raise InvariantError(
                f"{live} of this lineage exists already; a published step is never replaced"
            )
        self._fence.check()
        self._files.rename(live, live.parent / names.stale(version, self._incarnation))
        self._files.fsync_dir(live.parent)

    # ------------------------------------------------------------------------------- shared

    def rows_directory(self, tree: TmpTree) -> PurePosixPath:
        """Where the plane saves the rows of the cut; the plane creates it."""
        is_snapshot = tree.directory.parent == names.RunPaths(self._run_dir).snapshots
        return tree.directory / ("" if is_snapshot else names.ROLLOUT_STATE) / names.ROWS

    def _open(self, directory: PurePosixPath, *, kind: str) -> TmpTree:
        self._fence.check()
        tree = TmpTree(self._files, directory, fence=self._fence, mark=_prefixed(self._world, kind))
        tree.open()
        return tree

    def _write_state(
        self,
        tree: TmpTree,
        prefix: str,
        *,
        cut: Cut,
        rows: Iterable[SyncedFile],
        prefixes: Iterable[Row],
        fingerprint: bytes,
        recipe: bytes,
    ) -> None:
        """The payload of a cut, and the consumption log it names."""
        entries = [FileEntry(name=f.name, size=f.size, sha256=f.sha256) for f in rows]
        tree.add(f"{prefix}{names.ROWS}", entries)
        tree.write(f"{prefix}{names.STATE}", self._encoder.encode(cut))
        if cut.prefixes:
            tree.write(f"{prefix}{names.PREFIXES}", encode_prefixes(prefixes, cut=cut))
        tree.write(f"{prefix}{names.RECIPE}", recipe)
        tree.write(f"{prefix}{names.FINGERPRINT}", fingerprint)
        self._sync_log(cut)

    def _sync_log(self, cut: Cut) -> None:
        if cut.log.incarnation == self._incarnation:
            self._log.sync(cut.log.length)
            self._world.perhaps("log.synced")

    def _manifest(
        self,
        tree: TmpTree,
        *,
        kind: TreeKind,
        cut: Cut,
        anchor: Anchor,
        fingerprint: bytes,
        metrics: Mapping[str, float] | None = None,
    ) -> Manifest:
        return Manifest(
            format=FORMAT,
            kind=kind,
            run=self._run,
            sequence=cut.sequence,
            incarnation=self._incarnation,
            parent=cut.parent,
            anchor=anchor,
            trainer_version=cut.trainer_version,
            history=cut.history,
            log=cut.log,
            fingerprint=sha256(fingerprint),
            created=self._world.clock.wall(),
            metrics=dict(metrics or {}),
            files=tree.entries,
        )

    # ---------------------------------------------------------------------------- retention

    def retain_snapshots(self, *, keep_latest_k: int) -> Warnings:
        """After an acknowledgement: see `Retention.snapshots`."""
        return self._retention.snapshots(keep_latest_k=keep_latest_k)

    def retain_checkpoints(
        self,
        *,
        pinned: Collection[TrainerVersion] = (),
        keep_top_k: int = 0,
        score: Score = lambda manifest: None,
    ) -> Warnings:
        """After an acknowledgement: see `Retention.checkpoints`."""
        return self._retention.checkpoints(pinned=pinned, keep_top_k=keep_top_k, score=score)

    def standing_checkpoints(self) -> frozenset[TrainerVersion]:
        """Versions whose trainer checkpoint has a live name."""
        versions = map(names.parse_checkpoint, self._files.list(self._run_dir))
        return frozenset(TrainerVersion(v) for v in versions if v is not None)

    def sweep(self) -> Warnings:
        """Remove debris of earlier lives; only after adoption."""
        return self._retention.sweep()


def _prefixed(world: World, kind: str) -> Callable[[str], None]:
    def mark(name: str, /) -> None:
        world.perhaps(f"{kind}.{name}")

    return mark
