"""The two disks of a fork: what it reads of the old run, and how the new one is written.

The new run is written by `Publisher`, as every cut is. Nothing is linked: a flipped bit in one run
must not reach the other. May import: the rest of `durable`, `model`, `errors`, `world`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from outlast.durable import lineage, names
from outlast.durable.anchors import write_bootstrap
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cutcodec import LoadedCut
from outlast.durable.cuts import read_chain
from outlast.durable.files import Files, make_directory
from outlast.durable.forkcut import Terms
from outlast.durable.manifest import FileEntry, Manifest, RunListing, encode, sha256
from outlast.durable.publish import TmpTree, publish_file, replace_file
from outlast.durable.restore import Resume
from outlast.durable.sealed import seal
from outlast.durable.segmentfile import read_saved
from outlast.durable.segments import Held, SegmentStore
from outlast.durable.snapshots import Publisher
from outlast.errors import CorruptData, NotRestorable
from outlast.model.cut import Cut, LogPosition
from outlast.model.ids import AttemptKey, Sequence
from outlast.rows import Row
from outlast.world import World

REASON = "forked"
"""How the life that made the fork ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The cut to fork at and everything it stands on, verified."""

    files: Files
    run_dir: PurePosixPath
    listing: RunListing
    plan: Resume
    loaded: LoadedCut
    anchor: LoadedCut | None
    """Of the trainer checkpoint to load; None for the bootstrap anchor."""

    def chain(self) -> tuple[LogPosition, ...]:
        """The logs below the cut, each as far as it counts. Raises NotRestorable."""
        chain = read_chain(self.listing, self.loaded.manifest)
        below = {position.incarnation: position.length for position in chain}
        if self.anchor is not None:
            at = self.anchor.manifest.log
            if at.length > below.get(at.incarnation, -1):
                raise NotRestorable(
                    f"{self.loaded.directory.name} does not descend from "
                    f"{self.anchor.directory.name}, though their histories agree. Nothing was "
                    f"changed. Fork at {self.anchor.directory.name}."
                )
        return chain

    def rows(self, loaded: LoadedCut, keys: frozenset[AttemptKey]) -> dict[AttemptKey, Held]:
        """The rows of `keys`, each compared with its digest. Raises CorruptData."""
        if not keys:
            return {}
        saved = read_saved(self.files, loaded.rows)
        if keys - saved.rows.keys():
            raise CorruptData(f"{loaded.rows} lacks row {min(keys - saved.rows.keys())}")
        return {e.key: Held(saved.rows[e.key], e.digest) for e in saved.index.rows if e.key in keys}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The cut of the new run."""

    manifest: Manifest
    cut: Cut
    name: str
    bytes: int
    """Payload of all trees that were written."""


class Target:
    """A run directory in the making."""

    def __init__(
        self, files: Files, directory: PurePosixPath, *, source: Source, world: World
    ) -> None:
        self._files = files
        self._paths = names.RunPaths(directory)
        self._source = source
        self._world = world

    def publish(self, cut: Cut, *, terms: Terms | None) -> Published:
        """Write the lives below the cut, what it is anchored to, and `cut` itself."""
        source = self._source
        self._begin(source.chain())
        fingerprint = source.loaded.fingerprint if terms is None else encode(terms.fingerprint)
        recipe = source.loaded.recipe if terms is None else terms.recipe
        replace_file(self._files, self._paths.run_dir / names.RECIPE, data=recipe)
        if source.listing.bootstrap is not None:
            write_bootstrap(self._files, self._paths.run_dir, record=source.listing.bootstrap)
        written = 0
        if source.anchor is not None and cut.trainer_version > cut.anchor.version:
            manifest, _ = self._checkpoint(
                source.anchor, source.anchor.cut, fingerprint=fingerprint, recipe=recipe, whole=True
            )
            written += _size(manifest)
        publish = self._snapshot
        if source.anchor is not None and cut.trainer_version == cut.anchor.version:
            publish = self._checkpoint
        manifest, final = publish(source.loaded, cut, fingerprint=fingerprint, recipe=recipe)
        self._end(final)
        name = names.snapshot(final.sequence)
        if publish == self._checkpoint:
            name = names.checkpoint(final.trainer_version)
        return Published(manifest=manifest, cut=final, name=name, bytes=written + _size(manifest))

    # ---------------------------------------------------------------------------- the lives

    def _begin(self, chain: tuple[LogPosition, ...]) -> None:
        """The lives below the cut, and one of our own that restored it."""
        files, listing = self._files, self._source.listing
        below = {position.incarnation for position in chain}
        records = {r.number: r for r in listing.incarnations if r.number in below}
        old = RunListing(
            run=None,
            incarnations=tuple(records.values()),
            ends=(),
            bootstrap=None,
            cuts=(),
            highest_sequence=listing.highest_sequence,
            debris=(),
            strangers=(),
        )
        self._life = lineage.adopt(
            files,
            self._paths.run_dir,
            listing=old,
            restored=self._source.loaded.manifest,
            world=self._world,
        )
        for position, before in zip(chain, (None, *chain), strict=False):
            record = msgspec.structs.replace(records[position.incarnation], restored_log=before)
            path = self._paths.incarnations / names.incarnation(record.number)
            publish_file(files, path, data=seal(record))
            self._copy_log(position)
        for end in listing.ends:
            if end.number in below:
                path = self._paths.incarnations / names.incarnation_end(end.number)
                publish_file(files, path, data=seal(end))
        self._wire()

    def _copy_log(self, position: LogPosition) -> None:
        """The records that count; what lies beyond is void and stays behind."""
        if not position.length:
            return
        name = names.consumption_log(position.incarnation)
        source = names.RunPaths(self._source.run_dir).consumption / name
        data = self._files.read_at(source, offset=0, length=position.length)
        if sha256(data) != position.digest:
            raise CorruptData(f"{source}: its first {position.length} bytes are not those audited")
        publish_file(self._files, self._paths.consumption / name, data=data)

    def _wire(self) -> None:
        files, number, fence = self._files, self._life.record.number, self._life.fence
        log = ConsumptionLog(files, self._paths.consumption, incarnation=number, fence=fence)
        self._log_position = log.position
        self._publisher = Publisher(
            files,
            self._paths.run_dir,
            run=self._life.run.run,
            incarnation=number,
            fence=fence,
            log=log,
            world=self._world,
        )
        self._segments = SegmentStore(files, self._paths.segments, incarnation=number)
        self._next = self._life.record.first_sequence

    def _end(self, cut: Cut) -> None:
        lineage.write_end(
            self._files,
            self._paths.run_dir,
            number=self._life.record.number,
            reason=REASON,
            last_cut=cut.sequence,
            ended=self._world.clock.wall(),
        )

    # ----------------------------------------------------------------------------- the trees

    def _checkpoint(
        self,
        loaded: LoadedCut,
        cut: Cut,
        *,
        fingerprint: bytes,
        recipe: bytes,
        whole: bool = False,
    ) -> tuple[Manifest, Cut]:
        """``step_N`` with `cut` bundled; `whole` keeps the log position it had in the old run."""
        anchor = self._source.anchor
        assert anchor is not None
        final = self._ours(cut, log=cut.log if whole else self._log_position)
        tree = self._publisher.open_checkpoint(final.trainer_version, sequence=final.sequence)
        self._copy_shards(anchor, tree)
        manifest = self._publisher.publish_checkpoint(
            tree,
            cut=final,
            rows=self._save_rows(tree, loaded, cut=final),
            fingerprint=fingerprint,
            recipe=recipe,
            prefixes=_kept_prefixes(loaded, final),
            metrics=anchor.manifest.metrics,
        )
        return manifest, final

    def _snapshot(
        self, loaded: LoadedCut, cut: Cut, *, fingerprint: bytes, recipe: bytes
    ) -> tuple[Manifest, Cut]:
        final = self._ours(cut, log=self._log_position)
        tree = self._publisher.open_snapshot(final.sequence)
        manifest = self._publisher.publish_snapshot(
            tree,
            cut=final,
            rows=self._save_rows(tree, loaded, cut=final),
            fingerprint=fingerprint,
            recipe=recipe,
            prefixes=_kept_prefixes(loaded, final),
        )
        return manifest, final

    def _ours(self, cut: Cut, *, log: LogPosition) -> Cut:
        """`cut` as a cut of the new run."""
        sequence = self._next
        self._next = Sequence(sequence + 1)
        return msgspec.structs.replace(
            cut,
            sequence=sequence,
            incarnation=self._life.record.number,
            parent=self._source.loaded.cut.sequence,
            log=log,
        )

    def _save_rows(self, tree: TmpTree, loaded: LoadedCut, *, cut: Cut) -> tuple[FileEntry, ...]:
        directory = self._publisher.rows_directory(tree)
        make_directory(self._files, directory)
        rows = self._source.rows(loaded, cut.row_keys)
        return self._segments.save(rows, directory, link=False)

    def _copy_shards(self, anchor: LoadedCut, tree: TmpTree) -> None:
        for entry in anchor.manifest.files:
            if not entry.name.startswith(f"{names.TRAINER}/"):
                continue
            target = tree.directory / entry.name
            self._make_parents(target.parent, top=tree.directory)
            if _copy(self._files, anchor.directory / entry.name, target=target) != entry.sha256:
                raise CorruptData(f"{anchor.directory / entry.name} changed while it was copied")

    def _make_parents(self, directory: PurePosixPath, *, top: PurePosixPath) -> None:
        if directory != top and not self._files.exists(directory):
            self._make_parents(directory.parent, top=top)
            self._files.mkdir(directory)


def _copy(files: Files, source: PurePosixPath, *, target: PurePosixPath) -> str:
    """Copy a file, synced; hex sha256 of what was read."""
    digest = hashlib.sha256()
    writer = files.create(target)
    try:
        for piece in files.chunks(source):
            digest.update(piece)
            writer.write(piece)
        writer.fsync()
    finally:
        writer.close()
    return digest.hexdigest()


def _size(manifest: Manifest) -> int:
    return sum(entry.size for entry in manifest.files)


def _kept_prefixes(loaded: LoadedCut, cut: Cut) -> tuple[Row, ...]:
    named = {prefix.key for prefix in cut.prefixes}
    return tuple(row for row in loaded.prefixes if row.key in named)
