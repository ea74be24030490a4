"""TransferQueue's own checkpoint: written while nothing changes, sealed, verified before a load.

Keeps P3: its pickles are opened only after each file has proven to be the one that was sealed, and
only in a fresh queue; a queue whose load failed is thrown away. It holds whatever the queue held;
its index names the rows of the cut, and a load clears the others.
May import: `durable.native`, `planes.queue_*`, `planes.fence`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from outlast.adapters.planes.fence import Fence
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.adapters.planes.queue_rows import PARTITION, QueueRows
from outlast.durable import names
from outlast.durable.files import Files, make_directory, remove_tree
from outlast.durable.native import NativeIndex, read_native, seal_native
from outlast.durable.segmentfile import inventory_difference
from outlast.durable.segments import Held
from outlast.errors import CorruptData, NotRestorable
from outlast.model.ids import AttemptKey
from outlast.ports import SavedFile
from outlast.rows import Row
from outlast.world import Offload


class NativeCheckpoints:
    """Saves and loads the queue of one plane."""

    def __init__(
        self,
        files: Files,
        queue: QueueRows,
        *,
        fence: Fence,
        offload: Offload,
        units: int,
        timeout_s: float,
    ) -> None:
        self._files = files
        self._queue = queue
        self._fence = fence
        self._offload = offload
        self._units = units
        self._timeout_s = timeout_s

    async def save(
        self, wanted: Mapping[AttemptKey, Held], directory: PurePosixPath
    ) -> tuple[SavedFile, ...]:
        """Write the queue below `directory`, durable when it returns.

        Raises TimeoutError when changes do not pause in time, QueueFault when the queue fails
        (another stands then), DiskError. Nothing is left below `directory` by the first two.
        """
        tree = directory / names.NATIVE_TREE
        await self._offload(make_directory, self._files, directory)
        await self._offload(make_directory, self._files, tree)
        try:
            async with self._fence.still(timeout_s=self._timeout_s):
                queue = await self._queue.queue()
                try:
                    await queue.answer(queue.client.save(str(tree)))
                except QueueFault as fault:
                    await self._queue.renounce(queue, fault)  # it must write no more
                    raise
        except (TimeoutError, QueueFault):
            await self._offload(remove_tree, self._files, tree)
            raise
        entries = await self._offload(
            seal_native,
            self._files,
            directory,
            partition=PARTITION,
            units=self._units,
            digests={key: held.digest for key, held in wanted.items()},
        )
        return tuple(SavedFile(name=e.name, size=e.size, sha256=e.sha256) for e in entries)

    async def load(
        self, directory: PurePosixPath, keys: frozenset[AttemptKey]
    ) -> dict[AttemptKey, Held]:
        """Fill the fresh queue with exactly `keys`, each checked against its digest.

        Raises CorruptData before anything is unpickled where a file differs, NotRestorable for
        another number of units.
        """
        index = await self._offload(read_native, self._files, directory)
        digests = index.digests
        if digests.keys() != keys:
            raise CorruptData(inventory_difference(directory, digests, wanted=keys))
        if index.units != self._units:
            raise NotRestorable(
                f"{directory} is a checkpoint of {index.units} TransferQueue storage units, which "
                f"no other number can read; data_plane.storage_units is {self._units}. Set it to "
                f"{index.units}; after a snapshot with data_plane.checkpoint: segments any number "
                "will do"
            )
        queue = await self._queue.queue()
        try:
            await queue.answer(queue.client.load(str(Path(directory / names.NATIVE_TREE))))
            standing = await queue.answer(queue.client.listing())
            named = {str(key) for key in keys}
            await queue.answer(queue.client.clear_names(sorted(standing - named)))
            rows = await queue.answer(queue.client.get(dict(digests)))
        except QueueFault as fault:
            await self._queue.renounce(queue, fault)  # none of its rows remain
            raise CorruptData(
                f"{directory} was not given back by TransferQueue as it was sealed: {fault}"
            ) from fault
        return held_rows(rows, index)


def held_rows(rows: list[Row], index: NativeIndex) -> dict[AttemptKey, Held]:
    """Rows with the digests that they were checked against."""
    digests = index.digests
    return {row.key: Held(row, digests[row.key]) for row in rows}
