"""The embedded generation engine: one model, one thread, continuous batching, weights in flight.

| loop   | consumes          | produces     | waits for           | unblocked by                |
|--------|-------------------|--------------|---------------------|-----------------------------|
| engine | commands, requests| token chunks | a command, when idle| generate, abort, fence, ... |

The asyncio side never touches a tensor; the thread never touches asyncio except through
`call_soon_threadsafe`. A failure of the thread reaches every waiting request as
InfrastructureFailure. Log-probabilities are those of `torch_sampling.sample`: the policy at the
request's temperature, before top-k and top-p. May import: torch, `ports`, the scheduler,
`weight_transfer`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch

from outlast.adapters.engines.refusals import Limits, check_request, tensors_of
from outlast.adapters.engines.torch_decoder import Decoder, make_decoder
from outlast.adapters.engines.torch_scheduler import Scheduler, engine_dtype
from outlast.adapters.role_thread import use_threads
from outlast.adapters.torch_model import resolve_model_directory
from outlast.adapters.weight_transfer import fetch
from outlast.config.schema import GenerationSection
from outlast.errors import InfrastructureFailure, InvariantError, OutlastError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationRequest, TokenChunk, Weights

R = TypeVar("R")
MakeDecoder = Callable[[], Decoder]


class _Worker:
    """The engine thread: runs commands between two iterations of the scheduler."""

    def __init__(self, *, threads: int, on_failure: Callable[[BaseException], None]) -> None:
        self._threads = threads
        self._on_failure = on_failure
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._closing = False
        self.scheduler: Scheduler | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, name="outlast-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Callable[[], None]) -> bool:
        """Run `command` on the thread before its next iteration; false when it has ended."""
        with self._wake:
            if self._closing:
                return False
            self._commands.append(command)
            self._wake.notify()
            return True

    def call(self, work: Callable[[], R]) -> Future[R]:
        """Run `work` on the thread; what it returns or raises goes into the future."""
        future: Future[R] = Future()

        def command() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except OutlastError as error:  # refusals answer the caller; the engine lives on
                    future.set_exception(error)
                except Exception as error:  # boundary: engine-command
                    future.set_exception(InfrastructureFailure(f"the engine failed: {error!r}"))
                    raise

        if not self.send(command):
            future.set_exception(_dead(self.failure))
        return future

    def close(self) -> None:
        """End the thread after its current iteration and wait for it."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _main(self) -> None:
        use_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._run_commands():
                    if self.scheduler is not None and self.scheduler.busy:
                        self.scheduler.step()
        except Exception as error:  # boundary: engine-thread
            self.failure = error
        self._abandon()

    def _run_commands(self) -> bool:
        with self._wake:
            while not (self._commands or self._closing or self._busy()):
                self._wake.wait()
            commands, self._commands = self._commands, []
        for command in commands:
            command()
        return not self._closing

    def _busy(self) -> bool:
        return self.scheduler is not None and self.scheduler.busy

    def _abandon(self) -> None:
        """Answer everybody who still waits, because nobody else will."""
        with self._wake:
            self._closing = True
            commands, self._commands = self._commands, []
        self.scheduler = None
        cause = self.failure or InfrastructureFailure("the engine was closed")
        for command in commands:
            try:
                command()
            except Exception as error:  # boundary: engine-thread
                cause = error
        self._on_failure(cause)


def _dead(cause: BaseException | None) -> InfrastructureFailure:
    failure = InfrastructureFailure(
        "the embedded engine is closed" if cause is None else f"the embedded engine died: {cause!r}"
    )
    failure.__cause__ = cause
    return failure


class TorchEngine:
    """Port `GenerationEngine` on torch, in this process. See the module's docstring."""

    def __init__(
        self,
        *,
        model_path: str,
        generation: GenerationSection,
        deterministic: bool = False,
        device: str = "cpu",
        generic: bool = False,
    ) -> None:
        """`generic` forces the slow decoder that runs every architecture. Raises RecipeError."""
        self.directory: Path = resolve_model_directory(model_path)
        self._settings = generation
        self._deterministic = deterministic
        self._device = torch.device(device)
        self._generic = generic
        self._worker: _Worker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tickets = itertools.count()
        self._streams: dict[int, asyncio.Queue[TokenChunk | InfrastructureFailure]] = {}
        self._by_id: dict[str, int] = {}
        self._fence: Incarnation | None = None
        self._served: WeightVersion | None = None
        self._limits = Limits()

    @property
    def continues_prefixes(self) -> bool:
        return True

    @property
    def served(self) -> WeightVersion | None:
        return self._served

    async def start(self) -> None:
        if self._worker is not None:
            raise InvariantError("TorchEngine.start: already started; one start per engine")
        self._loop = asyncio.get_running_loop()
        self._worker = _Worker(threads=self._settings.threads, on_failure=self._post_failure)
        self._worker.start()
        self._limits = await asyncio.wrap_future(self._worker.call(self._build))

    def _build(self) -> Limits:
        decoder = make_decoder(
            self.directory,
            dtype=engine_dtype(self._settings.dtype),
            device=self._device,
            generic=self._generic,
        )
        self._alive().scheduler = Scheduler(
            decoder,
            max_batch_size=self._settings.max_batch_size,
            deterministic=self._deterministic,
            emit=self._post,
        )
        return Limits(vocabulary=decoder.vocabulary_size, longest=decoder.max_length)

    async def close(self) -> None:
        """End the thread. Streams that are still open raise InfrastructureFailure. Idempotent."""
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """See the port. The request is submitted when the stream is first awaited."""
        self._check(request)
        worker, ticket = self._alive(), next(self._tickets)
        stream: asyncio.Queue[TokenChunk | InfrastructureFailure] = asyncio.Queue()
        self._streams[ticket], self._by_id[request.id] = stream, ticket
        if not worker.send(lambda: self._scheduler().submit(ticket, request)):
            stream.put_nowait(_dead(worker.failure))
        finished = False
        try:
            while not finished:
                item = await stream.get()
                if isinstance(item, InfrastructureFailure):
                    finished = True
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            del self._streams[ticket], self._by_id[request.id]
            if not finished:
                worker.send(lambda: self._scheduler().abort(ticket))

    async def abort(self, request_id: str, /) -> None:
        ticket = self._by_id.get(request_id)
        if ticket is not None:
            await self._call(lambda: self._scheduler().abort(ticket))

    async def fence(self, incarnation: Incarnation, /) -> None:
        self._fence = incarnation
        await self._call(lambda: self._scheduler().fence(incarnation))

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        if not isinstance(weights.payload, Mapping):  # published by a trainer in other processes
            state = await asyncio.to_thread(fetch, weights.payload)
            weights = replace(weights, payload=state)
        load = partial(self._load, tensors_of(weights), weights.version)
        self._served = await self._call(load)
        return self._served

    def _load(self, payload: Mapping[str, torch.Tensor], version: WeightVersion) -> WeightVersion:
        return self._scheduler().update(payload, version)

    def _check(self, request: GenerationRequest) -> None:
        check_request(
            request,
            fence=self._fence,
            served=self._served,
            running=self._by_id,
            limits=self._limits,
        )

    async def _call(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._alive().call(work))

    def _alive(self) -> _Worker:
        if self._worker is None:
            raise InvariantError("TorchEngine: used before start()")
        if self._worker.failure is not None:
            raise _dead(self._worker.failure)
        return self._worker

    def _scheduler(self) -> Scheduler:
        scheduler = self._alive().scheduler
        if scheduler is None:
            raise _dead(None)
        return scheduler

    def _post(self, due: Sequence[tuple[int, TokenChunk]]) -> None:
        """Hand chunks to the event loop; called on the engine thread."""
        self._on_loop(partial(self._deliver, due))

    def _post_failure(self, cause: BaseException) -> None:
        self._on_loop(partial(self._fail_all, cause))

    def _on_loop(self, callback: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(callback)

    def _deliver(self, due: Sequence[tuple[int, TokenChunk]]) -> None:
        for ticket, chunk in due:
            if ticket in self._streams:  # otherwise the consumer has closed it meanwhile
                self._streams[ticket].put_nowait(chunk)

    def _fail_all(self, cause: BaseException) -> None:
        for stream in self._streams.values():
            stream.put_nowait(_dead(cause))
