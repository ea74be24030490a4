"""The run's disk as the pumps see it: open a tree, commit it, let retention follow.

A thin asynchronous face of `durable`: everything runs through the world's offload, in the order
that A2 asks for (retention only after the acknowledgement). May import: `durable`, `world`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from outlast.durable import names
from outlast.durable.files import Files
from outlast.durable.manifest import Manifest, TreeKind
from outlast.durable.publish import TmpTree
from outlast.durable.retention import Warnings
from outlast.durable.snapshots import Publisher
from outlast.model.cut import Cut
from outlast.model.duties import Duties
from outlast.model.ids import TrainerVersion
from outlast.ports import SavedFile
from outlast.runtime.prefixes import Frozen, prefix_rows
from outlast.telemetry import events
from outlast.telemetry.bus import Bus
from outlast.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """What is kept besides the newest: snapshots, and the best checkpoints by a metric."""

    keep_latest_k: int
    keep_top_k: int = 0
    metric: str | None = None


@dataclass(frozen=True, slots=True)
class StorePlace:
    """A run directory on some disk."""

    files: Files
    run_dir: PurePosixPath

    @property
    def paths(self) -> names.RunPaths:
        return names.RunPaths(self.run_dir)


@dataclass(frozen=True, slots=True)
class OpenTree:
    """A tree under construction, and where others write into it."""

    kind: TreeKind
    tree: TmpTree
    rows: Path
    foreign: Path
    """The trainer's own directory (checkpoints only)."""


@dataclass(frozen=True, slots=True)
class Published:
    """An acknowledged cut."""

    name: str
    bytes_total: int
    bytes_new: int
    """Without the segments that earlier cuts wrote."""


class RunStore:
    """Publishes cuts of one incarnation."""

    def __init__(
        self,
        world: World,
        bus: Bus,
        *,
        publisher: Publisher,
        retention: RetentionSettings,
        fingerprint: bytes,
        recipe: bytes,
        duties: Callable[[], Duties | None],
    ) -> None:
        self._world = world
        self._bus = bus
        self._publisher = publisher
        self._retention = retention
        self._duties = duties
        self._fingerprint = fingerprint
        self._recipe = recipe
        self._linked: set[str] = set()
        self.last_published: str | None = None
        """Live name of the newest acknowledged cut of this incarnation."""

    async def open_snapshot(self, cut: Cut) -> OpenTree:
        """Start a periodic snapshot."""
        tree = await self._world.offload(self._publisher.open_snapshot, cut.sequence)
        return self._opened(TreeKind.SNAPSHOT, tree)

    async def open_checkpoint(self, cut: Cut) -> OpenTree:
        """Start ``step_N``; its bundled cut is `cut`."""
        tree = await self._world.offload(
            self._publisher.open_checkpoint, cut.trainer_version, sequence=cut.sequence
        )
        return self._opened(TreeKind.TRAINER_CHECKPOINT, tree)

    def _opened(self, kind: TreeKind, tree: TmpTree) -> OpenTree:
        return OpenTree(
            kind=kind,
            tree=tree,
            rows=Path(self._publisher.rows_directory(tree)),
            foreign=Path(tree.directory / names.TRAINER),
        )

    async def commit(
        self, opened: OpenTree, cut: Cut, *, rows: Sequence[SavedFile], prefixes: Frozen
    ) -> Published:
        """Publish; acknowledged when it returns. Retention failures become warnings."""
        manifest = await self._world.offload(
            self._publish, opened, cut, rows=rows, prefixes=prefixes
        )
        name = self._name(manifest)
        self.last_published = name
        for warning in await self._world.offload(self._retain, opened.kind):
            self._bus.emit(events.Warned(message=warning))
        if opened.kind is TreeKind.TRAINER_CHECKPOINT and (duties := self._duties()) is not None:
            duties.keep(await self._world.offload(self._publisher.standing_checkpoints))
        total = sum(entry.size for entry in manifest.files)
        known = sum(row.size for row in rows if row.name in self._linked)
        if opened.kind is TreeKind.SNAPSHOT:
            self._linked = {row.name for row in rows}
        else:
            known = 0
        return Published(name=name, bytes_total=total, bytes_new=total - known)

    async def abandon(self, opened: OpenTree) -> None:
        """Remove an unfinished tree as far as possible; a sweep does the rest."""
        await self._world.offload(opened.tree.abandon)

    def _publish(
        self, opened: OpenTree, cut: Cut, *, rows: Sequence[SavedFile], prefixes: Frozen
    ) -> Manifest:
        if opened.kind is TreeKind.SNAPSHOT:
            return self._publisher.publish_snapshot(
                opened.tree,
                cut=cut,
                rows=rows,
                prefixes=prefix_rows(prefixes),
                fingerprint=self._fingerprint,
                recipe=self._recipe,
            )
        outcome = cut.metrics.get(str(cut.trainer_version), {})
        return self._publisher.publish_checkpoint(
            opened.tree,
            cut=cut,
            rows=rows,
            prefixes=prefix_rows(prefixes),
            fingerprint=self._fingerprint,
            recipe=self._recipe,
            metrics=outcome,
        )

    def _retain(self, kind: TreeKind) -> Warnings:
        retention = self._retention
        warnings = self._publisher.retain_snapshots(keep_latest_k=retention.keep_latest_k)
        if kind is TreeKind.TRAINER_CHECKPOINT:
            warnings += self._publisher.retain_checkpoints(
                keep_top_k=retention.keep_top_k, score=self._score
            )
        return warnings

    def _score(self, manifest: Manifest) -> float | None:
        """Rank of a checkpoint; one without the metric ranks last, so it never blocks retention."""
        metric = self._retention.metric
        if metric is None:
            return float("-inf")
        duties = self._duties()
        later = duties.metrics.get(str(manifest.trainer_version), {}) if duties else {}
        recorded = later | manifest.metrics
        return recorded.get(metric, float("-inf"))

    def _name(self, manifest: Manifest) -> str:
        if manifest.kind is TreeKind.SNAPSHOT:
            return names.snapshot(manifest.sequence)
        return names.checkpoint(TrainerVersion(manifest.trainer_version))
