"""A data plane whose rows live in TransferQueue on Ray, for trainers in other processes.

A row is appended to a segment, then published in the queue, then acknowledged; it leaves this
process's memory once a synced segment holds it. A queue that dies is filled again (`queue_rows`).
Its port is open to whoever reaches it and unpickles what arrives: trusted networks only.
May import: `planes.segmented`, `planes.queue_*`, `durable.native`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from outlast.adapters.planes.fence import Fence
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.adapters.planes.queue_native import NativeCheckpoints
from outlast.adapters.planes.queue_reader import QueueReader
from outlast.adapters.planes.queue_rows import QueueRows
from outlast.adapters.planes.segmented import SegmentedPlane
from outlast.config.schema import DataPlaneSection, RaySection
from outlast.durable.files import Files
from outlast.durable.native import is_native
from outlast.durable.segments import Held
from outlast.model.ids import AttemptKey, Incarnation
from outlast.ports import PlaneHandle, SavedFile
from outlast.rows import Row
from outlast.world import Offload


def _silent(message: str) -> None:
    del message


class _FencedRows:
    """`QueueRows` whose changes pause while a native checkpoint is written."""

    def __init__(self, queue: QueueRows, fence: Fence) -> None:
        self._queue = queue
        self._fence = fence

    async def store(self, rows: Mapping[AttemptKey, Held], /) -> None:
        async with self._fence.change():
            await self._queue.store(rows)

    async def fetch(self, wanted: Mapping[AttemptKey, Held], /) -> dict[AttemptKey, Row]:
        return await self._queue.fetch(wanted)

    async def drop(self, keys: Sequence[AttemptKey], /) -> None:
        async with self._fence.change():
            await self._queue.drop(keys)

    async def close(self) -> None:
        await self._queue.close()


class TransferQueuePlane(SegmentedPlane):
    """`DataPlane` over a `SegmentStore` and a TransferQueue that starts at the first row.

    Raises OutlastError where TransferQueue is lost again and again, RecipeError where it is not
    installed.
    """

    def __init__(
        self,
        files: Files,
        segments_dir: PurePosixPath,
        *,
        incarnation: Incarnation,
        offload: Offload,
        settings: DataPlaneSection,
        ray: RaySection,
        on_warning: Callable[[str], None] | None = None,
    ) -> None:
        self._settings = settings
        self._warn = on_warning or _silent
        self._queue = QueueRows(
            settings=settings,
            ray=ray,
            offload=offload,
            inventory=self.inventory,
            warn=self._warn,
        )
        fence = Fence()
        self._native = NativeCheckpoints(
            files,
            self._queue,
            fence=fence,
            offload=offload,
            units=settings.storage_units,
            timeout_s=settings.timeout_s,
        )
        live = _FencedRows(self._queue, fence)
        super().__init__(files, segments_dir, incarnation=incarnation, offload=offload, live=live)

    async def save(
        self, handle: PlaneHandle, *, keys: frozenset[AttemptKey], directory: Path, link: bool
    ) -> tuple[SavedFile, ...]:
        """Natively where the recipe says so, but for bundled cuts, and segments where that fails:
        they hold every row anyway, so no snapshot is missed."""
        wanted = self._wanted(handle, keys, directory=directory)
        if self._settings.checkpoint == "native" and link and wanted:
            try:
                return await self._native.save(wanted, PurePosixPath(directory))
            except (TimeoutError, QueueFault) as error:
                self._warn(
                    f"no native checkpoint within data_plane.timeout_s "
                    f"{self._settings.timeout_s} ({error}); this snapshot uses segments"
                )
        return await super().save(handle, keys=keys, directory=directory, link=link)

    async def load(self, directory: Path, keys: frozenset[AttemptKey], /) -> None:
        where = PurePosixPath(directory)
        if not await self._offload(is_native, self._files, where):
            await super().load(directory, keys)
            return
        self._expect_empty(directory)
        self._acknowledge(await self._native.load(where, keys))

    def reader(self) -> QueueReader:
        """For a trainer rank elsewhere: send it there, call ``fetch(keys)`` there."""
        return QueueReader(prefix=self._queue.prefix, timeout_s=self._settings.timeout_s)

    @property
    def replaced(self) -> int:
        """How often TransferQueue was lost and filled again."""
        return self._queue.replaced
