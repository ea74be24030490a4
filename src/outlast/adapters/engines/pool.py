"""Several engines as one: least-outstanding routing, and requests that outlive their engine.

| loop   | consumes     | produces        | waits for          | unblocked by |
|--------|--------------|-----------------|--------------------|--------------|
| probes | the clock    | dead members    | an answer, bounded | member       |
| mender | a dead place | a serving member| a start, bounded   | member       |

A request whose member dies goes on in another one from the tokens that had arrived: its consumer
sees one stream, nothing twice and nothing lost (S13). A member serves only at the version that was
acknowledged last (S8): one that misses an update, or comes back, loads it before it serves.
Pure asyncio: what a member is, a thread, an actor or a fake, is the factory's business.
May import: `ports`, `weight_transfer`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from outlast.errors import Fenced, InfrastructureFailure, InvariantError, OutlastError, StallAbort
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationEngine, GenerationRequest, TokenChunk, Weights

if TYPE_CHECKING:
    from outlast.adapters.weight_transfer import WeightTransfer  # needs torch, the pool does not

R = TypeVar("R")
MEND_FIRST_S = 1.0
MEND_MAX_S = 30.0
"""Back-off between two tries to make an engine again."""
CLOSE_MAX_S = 10.0

Item = TokenChunk | OutlastError
LOST = (InfrastructureFailure, TimeoutError, OSError)
"""What makes a member unusable, and not the run."""


@dataclass(eq=False, slots=True)
class _Stream:
    """One request inside one member."""

    items: asyncio.Queue[Item] = field(default_factory=asyncio.Queue)
    relay: asyncio.Task[None] | None = None


@dataclass(eq=False, slots=True)
class _Place:
    """One place of the pool. `engine` is None while it is being made again."""

    number: int
    engine: GenerationEngine | None
    serving: bool = False
    streams: set[_Stream] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Route:
    """Where a request is now."""

    place: _Place | None = None
    aborted: bool = False


class EnginePool:
    """`GenerationEngine` over `count` members that `make(number)` gives. Durations in seconds.

    A member may have an `async ping()` that raises InfrastructureFailure; one without is taken for
    dead as soon as a stream of it fails, and is never probed.
    """

    def __init__(
        self,
        make: Callable[[int], GenerationEngine],
        *,
        count: int,
        min_healthy: int,
        health_interval_s: float,
        health_timeout_s: float,
        transfer: WeightTransfer,
        on_warning: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._make = make
        self._places = [_Place(number, make(number)) for number in range(count)]
        self._min_healthy = min_healthy
        self._interval_s, self._timeout_s = health_interval_s, health_timeout_s
        self._transfer = transfer
        self._warn = on_warning
        self._continues = all(p.engine.continues_prefixes for p in self._places if p.engine)
        self._fence: Incarnation | None = None
        self._weights: Weights | None = None
        self._served: WeightVersion | None = None
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._routes: dict[str, _Route] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._short_since: float | None = None
        self._fatal: OutlastError | None = None
        self._closing = False

    @property
    def continues_prefixes(self) -> bool:
        return self._continues

    @property
    def served(self) -> WeightVersion | None:
        return self._served

    @property
    def healthy(self) -> int:
        """Members that live, whether they serve already or not."""
        return sum(place.engine is not None for place in self._places)

    # --------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Start all members at once. Raises when fewer than `min_healthy` come up."""
        causes = await asyncio.gather(*(self._started(place) for place in self._places))
        if self.healthy < self._min_healthy:
            await self.close()
            raise next(cause for cause in causes if cause is not None)
        self._spawn(self._probes())

    async def _started(self, place: _Place) -> BaseException | None:
        assert place.engine is not None
        try:
            await self._bounded(place.engine.start(), f"the start of engine {place.number}")
        except LOST as error:
            self._fell(place, place.engine, error)
            return error
        return None

    async def close(self) -> None:
        """End every member, waiting a bounded time for each. Idempotent."""
        self._closing = True
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_MAX_S)
        engines = [place.engine for place in self._places if place.engine is not None]
        for place in self._places:
            self._abandon(place, InfrastructureFailure("the pool of engines was closed"))
        await asyncio.gather(*(self._ended(engine) for engine in engines))
        self._transfer.close()

    async def _ended(self, engine: GenerationEngine) -> None:
        with contextlib.suppress(*LOST):
            await asyncio.wait_for(engine.close(), CLOSE_MAX_S)

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bounded(self, work: Awaitable[R], what: str) -> R:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError as error:
            message = f"{what}: no answer in {self._timeout_s:g} s"
            raise InfrastructureFailure(message) from error

    # ----------------------------------------------------------------------------- requests

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """See the port. Survives the death of members where they continue prefixes."""
        self._check(request)
        route = self._routes[request.id] = _Route()
        got: list[TokenChunk] = []
        try:
            while True:
                place = route.place = await self._choose(route)
                if place is None:
                    yield _aborted(request)
                    return
                try:
                    begun = _continued(request, got)
                    async with contextlib.aclosing(self._stream(place, begun)) as chunks:
                        async for chunk in chunks:
                            got.append(chunk)
                            yield chunk
                            if chunk.finish is not None:
                                return
                except InfrastructureFailure as error:
                    resumable = self._continues or not any(len(chunk.ids) for chunk in got)
                    if not await self._lost(place, error) or not resumable:
                        raise
        finally:
            del self._routes[request.id]

    def _check(self, request: GenerationRequest) -> None:
        if self._fence is not None and request.incarnation != self._fence:
            raise Fenced(
                f"request {request.id} of incarnation {request.incarnation} refused: the engines "
                f"are fenced to incarnation {self._fence}; a newer controller owns the run"
            )
        if self._weights is None:
            raise InvariantError(
                f"request {request.id} refused: no weights were loaded; call update_weights first"
            )
        if request.id in self._routes:
            raise InvariantError(f"request {request.id} refused: the id is still being generated")

    async def _choose(self, route: _Route) -> _Place | None:
        """The serving member with the fewest requests; None once the request was aborted."""
        until = asyncio.get_running_loop().time() + self._timeout_s
        while not route.aborted:
            if self._fatal is not None:
                raise self._fatal
            if self._closing:
                raise InfrastructureFailure("the pool of engines was closed")
            serving = [place for place in self._places if place.serving]
            if serving:
                return min(serving, key=lambda place: (len(place.streams), place.number))
            if not await self._change(until):
                raise InfrastructureFailure(
                    f"no engine of {len(self._places)} has served for {self._timeout_s:g} s"
                )
        return None

    async def _change(self, until: float) -> bool:
        """Wait until something about the members changes; False when `until` came first."""
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stream(
        self, place: _Place, request: GenerationRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        stream = _Stream()
        assert place.engine is not None
        stream.relay = asyncio.ensure_future(self._relay(place.engine, request, stream))
        place.streams.add(stream)
        try:
            while True:
                item = await stream.items.get()
                if isinstance(item, OutlastError):
                    raise item
                yield item
        finally:
            place.streams.discard(stream)
            stream.relay.cancel()
            await asyncio.wait([stream.relay])

    async def _relay(
        self, engine: GenerationEngine, request: GenerationRequest, stream: _Stream
    ) -> None:
        try:
            async for chunk in engine.generate(request):
                stream.items.put_nowait(chunk)
            end: OutlastError = InfrastructureFailure(f"the stream of {request.id} broke off")
            stream.items.put_nowait(end)
        except OutlastError as error:
            stream.items.put_nowait(error)

    async def abort(self, request_id: str, /) -> None:
        route = self._routes.get(request_id)
        if route is None:
            return
        route.aborted = True
        self._notify()
        if route.place is not None and route.place.engine is not None:
            with contextlib.suppress(*LOST):
                await self._bounded(route.place.engine.abort(request_id), f"abort {request_id}")

    async def fence(self, incarnation: Incarnation, /) -> None:
        """Every living member refuses other incarnations when this returns."""
        self._fence = incarnation
        await asyncio.gather(*(self._fenced(place, incarnation) for place in self._places))

    async def _fenced(self, place: _Place, incarnation: Incarnation) -> None:
        engine = place.engine
        if engine is not None:
            try:
                await self._bounded(engine.fence(incarnation), f"fence of engine {place.number}")
            except LOST as error:
                self._fell(place, engine, error)

    # ------------------------------------------------------------------------------ weights

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        """All living members load; one that fails is taken out. See the port."""
        if isinstance(weights.payload, Mapping):
            payload = await asyncio.to_thread(
                self._transfer.publish, weights.payload, weights.version
            )
            weights = replace(weights, payload=payload)
        async with self._updating:
            self._weights = weights
            await asyncio.gather(*(self._load(place, weights) for place in self._places))
        until = asyncio.get_running_loop().time() + self._timeout_s
        while not any(place.serving for place in self._places):
            if self._fatal is not None:
                raise self._fatal
            if not await self._change(until):
                raise StallAbort(
                    f"no engine of {len(self._places)} could load weights {weights.version} in "
                    f"{self._timeout_s:g} s; see their logs, then run the same command again"
                )
        self._served = weights.version
        return weights.version

    async def _load(self, place: _Place, weights: Weights) -> None:
        engine = place.engine
        if engine is None:
            return
        try:
            await self._bounded(
                engine.update_weights(weights), f"weights {weights.version}, engine {place.number}"
            )
        except LOST as error:
            self._fell(place, engine, error)
        else:
            place.serving = place.engine is engine
            self._notify()

    # ------------------------------------------------------------------------------- health

    async def _lost(self, place: _Place, cause: InfrastructureFailure) -> bool:
        """Whether a failed stream means that its member is dead; then it is taken out."""
        engine = place.engine
        if self._closing or engine is None:
            return not self._closing
        if await self._answers(place, engine):
            return False
        self._fell(place, engine, cause)
        return True

    async def _answers(self, place: _Place, engine: GenerationEngine) -> bool:
        """Whether the member lives. One that cannot be asked is dead once a stream has failed."""
        ping = getattr(engine, "ping", None)
        if ping is None:
            return False
        try:
            await self._bounded(ping(), f"probe of engine {place.number}")
        except LOST:
            return False
        return True

    async def _probes(self) -> None:
        """Ask every member in turn for its health, and watch that enough of them live."""
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.gather(*(self._probe(place) for place in self._places))
            self._judge()

    async def _probe(self, place: _Place) -> None:
        engine = place.engine
        if engine is None or not hasattr(engine, "ping"):
            return
        if not await self._answers(place, engine) and place.engine is engine:
            self._fell(place, engine, InfrastructureFailure("it does not answer its probe"))

    def _judge(self) -> None:
        """Give the run up once too few members have lived for too long."""
        now = asyncio.get_running_loop().time()
        if self.healthy >= self._min_healthy:
            self._short_since = None
            return
        self._short_since = self._short_since or now
        if now - self._short_since >= self._timeout_s and self._fatal is None:
            self._fatal = StallAbort(
                f"{self.healthy} of {len(self._places)} engines alive for {self._timeout_s:g} s, "
                f"generation.min_healthy_engines is {self._min_healthy}; see the warnings for the "
                "cause, then run the same command again"
            )
            for place in self._places:
                self._abandon(place, self._fatal)
            self._notify()

    def _fell(self, place: _Place, engine: GenerationEngine, cause: BaseException) -> None:
        """Take a member out; its requests go elsewhere, and its place is filled again."""
        if place.engine is not engine:
            return
        place.engine, place.serving = None, False
        self._abandon(place, InfrastructureFailure(f"engine {place.number} is lost: {cause}"))
        self._notify()
        if not self._closing:
            self._warn(f"engine {place.number} is lost, and made again: {cause}")
            self._spawn(self._mend(place, engine))

    def _abandon(self, place: _Place, cause: OutlastError) -> None:
        for stream in tuple(place.streams):
            stream.items.put_nowait(cause)

    async def _mend(self, place: _Place, lost: GenerationEngine) -> None:
        """Make the engine of a place again, for as long as it takes."""
        await self._ended(lost)
        pause = MEND_FIRST_S
        while True:
            engine = self._make(place.number)
            try:
                await self._bounded(engine.start(), f"restart of engine {place.number}")
                await self._rejoin(place, engine)
                return
            except LOST as error:
                self._warn(f"engine {place.number} did not come back: {error}")
            finally:
                if place.engine is not engine:
                    await self._ended(engine)
            await asyncio.sleep(pause)
            pause = min(2 * pause, MEND_MAX_S)

    async def _rejoin(self, place: _Place, engine: GenerationEngine) -> None:
        """Fence and weights first; under the lock, so that no update passes in between."""
        async with self._updating:
            if self._fence is not None:
                await self._bounded(engine.fence(self._fence), f"fence of engine {place.number}")
            if self._weights is not None:
                await self._bounded(
                    engine.update_weights(self._weights), f"weights of engine {place.number}"
                )
            place.engine, place.serving = engine, self._weights is not None
        self._notify()


def _continued(request: GenerationRequest, got: Sequence[TokenChunk]) -> GenerationRequest:
    """The same request behind what has arrived of it."""
    if not got:
        return request
    parts = [*([] if request.prefix is None else [request.prefix]), *got]
    prefix = TokenChunk(
        ids=np.concatenate([part.ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
    )
    return replace(request, prefix=prefix)


def _aborted(request: GenerationRequest) -> TokenChunk:
    none = request.prompt_ids[:0]
    return TokenChunk(
        ids=none,
        logprobs=none.astype(np.float32),
        versions=none,
        finish="aborted",
    )
