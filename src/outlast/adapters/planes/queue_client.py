"""A client of one TransferQueue, on its own loop in its own thread, with its own deadlines.

TransferQueue's calls wait for ever, or ten minutes; here every one ends within `timeout_s`, and
what was not answered counts as lost. Its module-level interface knows one queue per process and
finds it by a fixed name, so the client is built from addresses instead.
May import: transfer_queue (when called), `planes.queue_columns`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import uuid4

from outlast.adapters.planes import queue_columns
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.durable.segments import Held
from outlast.errors import RecipeError
from outlast.model.ids import AttemptKey
from outlast.rows import Row

T = TypeVar("T")

BATCH_ROWS = 256
"""Most rows in one call."""
CONTROLLER_FILE = "controller_state.pkl"
_SETTINGS = {"TQ_LOGGING_LEVEL": "CRITICAL", "TQ_NUM_THREADS": "1"}
"""Read when it is imported: what matters of its log is raised here; one thread per role."""


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """Where a TransferQueue listens: its controller and its units in order, as it says itself."""

    controller: Any
    units: tuple[Any, ...]
    partition: str


def import_transfer_queue() -> Any:
    """Its client module. Raises RecipeError that says how to install it."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import tensordict  # noqa: F401
        from transfer_queue import client
    except ImportError as error:
        raise RecipeError(
            f"data_plane.impl: transfer_queue cannot be imported here ({error}); install it with: "
            "pip install 'outlast[transfer-queue]' and pip install --no-deps TransferQueue"
        ) from error
    return client


class QueueClient:
    """Connected by its constructor, which blocks. Methods may be called from any thread."""

    def __init__(self, address: QueueAddress, *, timeout_s: float) -> None:
        module = import_transfer_queue()
        self._partition = address.partition
        self._timeout_s = timeout_s
        self._client = module.AsyncTransferQueueClient(
            f"outlast_{uuid4().hex[:12]}", address.controller, zmq_io_threads=1
        )
        try:
            self._client.initialize_storage_manager(
                "SimpleStorage", {"zmq_info": dict(enumerate(address.units))}
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            raise QueueFault(f"its controller does not answer: {error}") from error
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="outlast-queue", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    # ------------------------------------------------------------------------- calls

    def put(self, rows: Mapping[AttemptKey, Held]) -> concurrent.futures.Future[None]:
        """Store rows (all resident) and see that they are listed with every column."""
        return self._submit(self._put(rows))

    def get(self, wanted: Mapping[AttemptKey, str | None]) -> concurrent.futures.Future[list[Row]]:
        """The rows of `wanted` in order, checked against the digests where there are any."""
        return self._submit(self._get(wanted))

    def clear(self, keys: Sequence[AttemptKey]) -> concurrent.futures.Future[None]:
        """Forget rows. A dead unit is not noticed here, by TransferQueue's own choice."""
        return self.clear_names([str(key) for key in keys])

    def clear_names(self, names: Sequence[str]) -> concurrent.futures.Future[None]:
        """`clear` for rows as `listing` names them."""
        return self._submit(self._clear(names))

    def listing(self) -> concurrent.futures.Future[frozenset[str]]:
        """Names of all rows that it lists."""
        return self._submit(self._bounded(self._list()))

    async def _list(self) -> frozenset[str]:
        found = await self._client.async_kv_list(self._partition)
        return frozenset(found.get(self._partition, ()))

    def save(self, directory: str) -> concurrent.futures.Future[None]:
        """TransferQueue's own checkpoint, below a directory that exists."""
        return self._submit(self._save(directory))

    async def _save(self, directory: str) -> None:
        state = f"{directory}/{CONTROLLER_FILE}"
        await self._bounded(self._client.async_save_controller_checkpoint(state))
        await self._bounded(self._client.async_save_storage_checkpoint(directory))

    def load(self, directory: str) -> concurrent.futures.Future[None]:
        """Fill a fresh queue. It unpickles what stands there, so all must be verified before."""
        return self._submit(self._load(directory))

    async def _load(self, directory: str) -> None:
        state = f"{directory}/{CONTROLLER_FILE}"
        await self._bounded(self._client.async_load_storage_checkpoint(directory))
        await self._bounded(self._client.async_load_controller_checkpoint(state))

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """One exchange. Raises QueueFault, whatever went wrong."""
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except QueueFault:
            raise
        except TimeoutError as error:
            raise QueueFault(f"no answer within data_plane.timeout_s {self._timeout_s}") from error
        except Exception as error:  # boundary: TransferQueue raises whatever it met
            raise QueueFault(f"{type(error).__name__}: {error}") from error

    async def _put(self, rows: Mapping[AttemptKey, Held]) -> None:
        for keys in _batches(list(rows)):
            await self._bounded(self._put_batch([rows[key] for key in keys]))

    async def _put_batch(self, held: Sequence[Held]) -> None:
        rows = [(item.row, item.digest) for item in held if item.row is not None]
        names = [str(row.key) for row, _ in rows]
        meta = await self._client.async_kv_retrieve_meta(
            keys=names, partition_id=self._partition, create=True
        )
        await self._client.async_put(queue_columns.encode(rows), meta)
        await self._listed(names)

    async def _get(self, wanted: Mapping[AttemptKey, str | None]) -> list[Row]:
        rows: list[Row] = []
        for keys in _batches(list(wanted)):
            rows += await self._bounded(self._get_batch({key: wanted[key] for key in keys}))
        return rows

    async def _get_batch(self, wanted: Mapping[AttemptKey, str | None]) -> list[Row]:
        meta = await self._listed([str(key) for key in wanted])
        return queue_columns.decode(await self._client.async_get_data(meta), wanted)

    async def _listed(self, names: Sequence[str]) -> Any:
        """What the controller knows of `names`, provided that it knows all of all."""
        meta = await self._client.async_kv_retrieve_meta(
            keys=list(names), partition_id=self._partition, create=False
        )
        absent = set(queue_columns.DTYPES) - set(meta.field_names)
        if meta.size != len(names) or absent:
            raise QueueFault(
                f"it knows {meta.size} of {len(names)} rows, first {names[0]}, and lacks columns "
                f"{sorted(absent)}"
            )
        return meta.select_fields(list(queue_columns.DTYPES))

    async def _clear(self, names: Sequence[str]) -> None:
        for batch in _batches(names):
            await self._bounded(self._clear_batch(list(batch)))

    async def _clear_batch(self, names: list[str]) -> None:
        meta = await self._client.async_kv_retrieve_meta(
            keys=names, partition_id=self._partition, create=False
        )
        if meta.size:
            await self._client.async_clear_samples(meta)

    # ------------------------------------------------------------------------- ending

    def close(self) -> None:
        """End the calls in flight, the thread and the sockets. Blocks shortly."""
        if not self._loop.is_closed():
            with_tasks = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
            concurrent.futures.wait([with_tasks], timeout=1.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5.0)
            if not self._thread.is_alive():
                self._loop.close()
                self._client.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _batches(keys: Sequence[T]) -> list[Sequence[T]]:
    return [keys[at : at + BATCH_ROWS] for at in range(0, len(keys), BATCH_ROWS)]
