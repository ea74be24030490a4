"""Planted bugs of the durable layer: the publication protocol, retention, lineage. See `planted`.

May import: `durable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from outlast.durable import publish, restore
from outlast.durable.lineage import lineage_cuts
from outlast.durable.listing import read_run
from outlast.durable.manifest import TreeKind
from outlast.durable.publish import TmpTree
from outlast.durable.retention import Retention
from outlast.durable.snapshots import Publisher
from outlast.model.cut import Cut

Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def log_synced_after_committed() -> Iterator[None]:
    """The consumption log follows the marker instead of preceding it."""
    real, sync = Publisher.publish_checkpoint, Publisher._sync_log

    def publish_checkpoint(self: Publisher, tree: TmpTree, *, cut: Cut, **kw: Any) -> Any:
        done = real(self, tree, cut=cut, **kw)
        sync(self, cut)
        return done

    with (
        patch.object(Publisher, "_sync_log", lambda self, cut: None),
        patch.object(Publisher, "publish_checkpoint", publish_checkpoint),
    ):
        yield


@contextmanager
def payload_not_synced() -> Iterator[None]:
    """Files of a cut are written, but not synced."""

    def write_file(files: Any, path: Any, *, data: bytes) -> None:
        writer = files.create(path)
        writer.write(data)
        writer.close()

    with patch.object(publish, "write_file", write_file):
        yield


@contextmanager
def acknowledged_before_parent_sync() -> Iterator[None]:
    """The rename into place is acknowledged before the directory holding it is synced."""
    real = TmpTree.commit

    def commit(self: TmpTree, *args: Any, **kw: Any) -> None:
        files = self._files
        sync = files.fsync_dir
        skip = (kw["live"] if "live" in kw else args[1]).parent

        def fsync_dir(path: Any, /) -> None:
            if path != skip:
                sync(path)

        with patch.object(files, "fsync_dir", fsync_dir):
            real(self, *args, **kw)

    with patch.object(TmpTree, "commit", commit):
        yield


@contextmanager
def retention_deletes_newest() -> Iterator[None]:
    """Retention keeps the oldest snapshots instead of the newest."""

    def snapshots(self: Retention, *, keep_latest_k: int) -> Any:
        listing = read_run(self._files, self._run_dir, verify="manifest")
        held = [f for f in lineage_cuts(listing) if f.kind is TreeKind.SNAPSHOT]
        return self._remove(listing, held[keep_latest_k:])

    with patch.object(Retention, "snapshots", snapshots):
        yield


@contextmanager
def latest_follows_a_foreign_cut() -> Iterator[None]:
    """`latest` takes the highest sequence, on the lineage or not."""
    with patch.object(restore, "why_foreign", lambda listing, manifest: None):
        yield


DURABLE_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        log_synced_after_committed,
        payload_not_synced,
        acknowledged_before_parent_sync,
        retention_deletes_newest,
        latest_follows_a_foreign_cut,
    )
}
