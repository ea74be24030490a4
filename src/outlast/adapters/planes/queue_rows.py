"""Rows in a TransferQueue that may die at any moment: noticed, replaced, filled again.

Keeps P1: what a queue held stands in segments or in memory, so a new one is filled from the
inventory and the call repeated. While one is being replaced no call ends, so no row is acknowledged
that the new one lacks, and none comes back that was released.
May import: `planes.queue_client`, `planes.queue_cluster`, `adapters.ray_session`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from uuid import uuid4

from outlast.adapters.planes.queue_client import QueueClient, import_transfer_queue
from outlast.adapters.planes.queue_cluster import QueueCluster
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.adapters.ray_session import SESSION
from outlast.adapters.ray_signals import take_signals_back
from outlast.config.schema import DataPlaneSection, RaySection
from outlast.durable.segments import Held
from outlast.errors import OutlastError
from outlast.model.ids import AttemptKey
from outlast.rows import Row
from outlast.world import Offload

T = TypeVar("T")
Inventory = Callable[[], Awaitable[Mapping[AttemptKey, Held]]]

WATCH_S = 1.0
"""Between looks at the actors: a dead one is noticed about so soon, a silent one later."""
PARTITION = "rows"
"""The queue belongs to one incarnation; a constant name lets the next one load its checkpoint."""
REPLACED_MAX = 3
"""Times in a row, without one answer between."""


class Queue:
    """One TransferQueue from start to death. Made off the event loop: it blocks for seconds."""

    def __init__(self, cluster: QueueCluster, client: QueueClient) -> None:
        self.cluster = cluster
        self.client = client
        self.lost: asyncio.Future[str] | None = None
        """Set by who watches; calls in flight end with it."""
        self.watch: asyncio.Task[None] | None = None

    async def answer(self, asked: concurrent.futures.Future[T]) -> T:
        """What was asked of the client. Raises QueueFault, at once when the queue is lost."""
        call = asyncio.wrap_future(asked)
        waits: set[asyncio.Future[T] | asyncio.Future[str]] = {call}
        if self.lost is not None:
            waits.add(self.lost)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if call.done() and not call.cancelled():
                return call.result()
            # A client that is closed cancels its calls: that is a loss, never our caller's end.
            known = self.lost is not None and self.lost.done()
            raise QueueFault(self.lost.result() if self.lost and known else "its client is closed")
        finally:
            call.cancel()

    def close(self) -> None:
        """End its threads and actors. Blocks shortly."""
        self.client.close()
        self.cluster.close()


class QueueRows:
    """`LiveRows` in TransferQueue. Starts at the first call. `inventory` gives all that is held."""

    def __init__(
        self,
        *,
        settings: DataPlaneSection,
        ray: RaySection,
        offload: Offload,
        inventory: Inventory,
        warn: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._ray_settings = ray
        self._offload = offload
        self._inventory = inventory
        self._warn = warn
        self.prefix = f"outlast-queue-{uuid4().hex[:12]}-"
        """Of the controllers' names; what follows is the generation."""
        self._lock = asyncio.Lock()
        self._queue: Queue | None = None
        self._buried: list[Queue] = []
        self._generation = 0
        self._failures = 0
        self._fatal: OutlastError | None = None
        self._connected = False
        self._closed = False
        self.replaced = 0
        """Queues that died and were replaced so far."""

    # ------------------------------------------------------------------------- rows

    async def store(self, rows: Mapping[AttemptKey, Held], /) -> None:
        await self._call(lambda queue: queue.client.put(rows))

    async def fetch(self, wanted: Mapping[AttemptKey, Held], /) -> dict[AttemptKey, Row]:
        digests: dict[AttemptKey, str | None] = {key: held.digest for key, held in wanted.items()}
        rows = await self._call(lambda queue: queue.client.get(digests))
        return {row.key: row for row in rows}

    async def drop(self, keys: Sequence[AttemptKey], /) -> None:
        if self._queue is not None or self._lock.locked():  # else none holds anything
            await self._call(lambda queue: queue.client.clear(keys))

    async def _call(self, ask: Callable[[Queue], concurrent.futures.Future[T]]) -> T:
        while True:
            queue = await self._living()
            try:
                result = await queue.answer(ask(queue))
            except QueueFault as fault:
                self._bury(queue, fault)
                continue
            if queue is self._queue:  # else it was replaced by one that may lack the result
                self._failures = 0
                return result

    # ------------------------------------------------------------------------- lives

    async def queue(self) -> Queue:
        """The living one, started where there is none."""
        return await self._living()

    async def _living(self) -> Queue:
        async with self._lock:
            while self._queue is None:
                if self._fatal is not None:
                    raise self._fatal
                if self._closed:
                    raise OutlastError("the data plane is used after it was closed")
                try:
                    self._queue = await self._replacement()
                except QueueFault as fault:
                    self._failed(fault)
            return self._queue

    async def _replacement(self) -> Queue:
        """A queue with every row that is held. Raises QueueFault."""
        while self._buried:
            await self._offload(self._buried[-1].close)
            self._buried.pop()
        self._generation += 1
        queue = await self._offload(self._open, self._generation)
        take_signals_back()
        try:
            queue.lost = asyncio.get_running_loop().create_future()
            rows = await self._inventory()
            if rows:
                await queue.answer(queue.client.put(rows))
            await self._offload(queue.cluster.announce)
        except BaseException:
            self._buried.append(queue)
            raise
        queue.watch = asyncio.create_task(self._watch(queue), name="outlast-queue-watch")
        return queue

    def _open(self, generation: int) -> Queue:
        import_transfer_queue()  # refused before a cluster is started for it
        if not self._connected:
            SESSION.acquire(self._ray_settings)
            self._connected = True
        import ray

        cluster = QueueCluster(
            ray,
            name=f"{self.prefix}{generation:06d}",
            partition=PARTITION,
            units=self._settings.storage_units,
        )
        try:
            client = QueueClient(cluster.address, timeout_s=self._settings.timeout_s)
        except BaseException:
            cluster.close()
            raise
        return Queue(cluster, client)

    async def _watch(self, queue: Queue) -> None:
        """Notice a death without being asked: ranks elsewhere wait for the next queue."""
        while self._queue is queue:
            await asyncio.sleep(WATCH_S)
            found = await queue.cluster.death(timeout_s=self._settings.timeout_s)
            if found is None or self._queue is not queue:
                continue
            try:
                self._bury(queue, QueueFault(found))
                await self._living()
            except OutlastError as error:
                self._fatal = error  # raised by the next call

    def _bury(self, queue: Queue, fault: QueueFault) -> None:
        """From here on nobody uses `queue`, whose calls in flight end."""
        if self._queue is not queue:
            return
        self._queue = None
        self._buried.append(queue)
        if queue.lost is not None and not queue.lost.done():
            queue.lost.set_result(str(fault))
        self._failed(fault)

    async def renounce(self, queue: Queue, fault: QueueFault) -> None:
        """Give `queue` up, whatever state it is in, and have the next one."""
        self._bury(queue, fault)
        await self._living()

    def _failed(self, fault: QueueFault) -> None:
        self._failures += 1
        if self._failures > REPLACED_MAX:
            self._fatal = OutlastError(
                f"TransferQueue was lost {self._failures} times in a row without one answer "
                f"between; the last time: {fault}. Look at the cluster, or set data_plane.impl: "
                "memory; then run the same command again: no acknowledged row of the last "
                "snapshot is lost"
            )
            raise self._fatal from fault
        self.replaced += 1
        self._warn(f"TransferQueue was lost ({fault}); starting another and filling it again")

    async def close(self) -> None:
        """End the queue and give the connection to Ray back. Idempotent."""
        self._closed = True
        async with self._lock:
            queue, self._queue = self._queue, None
            if queue is not None:
                self._buried.append(queue)
                if queue.watch is not None:
                    queue.watch.cancel()
            while self._buried:
                await self._offload(self._buried.pop().close)
            if self._connected:
                self._connected = False
                await self._offload(SESSION.release)
