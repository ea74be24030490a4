"""Several engines as one: least-outstanding routing, and requests that outlive their engine.

A request whose member dies goes on in another one from the tokens that had arrived: its consumer
sees one stream, nothing twice and nothing lost (S13). Pure asyncio: what a member is, a thread, an
actor or a fake, is the factory's business. May import: `ports`, `pool_members`, `weight_transfer`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from outlast.adapters.engines.pool_members import LOST, Health, Members, Place, Stream
from outlast.errors import Fenced, InfrastructureFailure, InvariantError, OutlastError, StallAbort
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationEngine, GenerationRequest, TokenChunk, Weights

if TYPE_CHECKING:
    from outlast.adapters.weight_transfer import WeightTransfer  # needs torch, the pool does not


@dataclass(eq=False, slots=True)
class _Route:
    """Where a request is now."""

    place: Place | None = None
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
        start_timeout_s: float,
        transfer: WeightTransfer,
        on_warning: Callable[[str], None] = lambda message: None,
    ) -> None:
        health = Health(
            min_healthy=min_healthy,
            interval_s=health_interval_s,
            timeout_s=health_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        self._members = Members(make, count=count, health=health, on_warning=on_warning)
        self._transfer = transfer
        self._timeout_s = health_timeout_s
        self._served: WeightVersion | None = None
        self._routes: dict[str, _Route] = {}

    @property
    def continues_prefixes(self) -> bool:
        return self._members.continues_prefixes

    @property
    def served(self) -> WeightVersion | None:
        return self._served

    @property
    def healthy(self) -> int:
        """Members that live, whether they serve already or not."""
        return self._members.healthy

    async def start(self) -> None:
        """Start all members at once. Raises when fewer than `min_healthy` come up."""
        await self._members.start()

    async def close(self) -> None:
        """End every member, waiting a bounded time for each. Idempotent."""
        await self._members.close()
        self._transfer.close()

    async def fence(self, incarnation: Incarnation, /) -> None:
        """Every living member refuses other incarnations when this returns."""
        await self._members.fence(incarnation)

    # ----------------------------------------------------------------------------- requests

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """See the port. Survives the death of members where they continue prefixes."""
        self._check(request)
        route = self._routes[request.id] = _Route()
        got: list[TokenChunk] = []
        try:
            async with contextlib.aclosing(self._anywhere(request, route, got=got)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            del self._routes[request.id]

    async def _anywhere(
        self, request: GenerationRequest, route: _Route, *, got: list[TokenChunk]
    ) -> AsyncGenerator[TokenChunk, None]:
        """One stream over as many members as it takes; `got` collects what was passed on."""
        while not got or got[-1].finish is None:
            place = route.place = await self._choose(route)
            if place is None:
                yield _aborted(request)
                return
            try:
                async with contextlib.aclosing(
                    self._stream(place, _continued(request, got))
                ) as chunks:
                    async for chunk in chunks:
                        got.append(chunk)
                        yield chunk
            except InfrastructureFailure as error:
                await self._expect_another(place, error, got=got)

    async def _expect_another(
        self, place: Place, error: InfrastructureFailure, *, got: Sequence[TokenChunk]
    ) -> None:
        """Raise `error` unless its member is dead and another one can go on from `got`."""
        resumable = self.continues_prefixes or not any(len(chunk.ids) for chunk in got)
        if not await self._members.lost(place, error) or not resumable:
            raise error

    def _check(self, request: GenerationRequest) -> None:
        fence = self._members.fenced_to
        if fence is not None and request.incarnation != fence:
            raise Fenced(
                f"request {request.id} of incarnation {request.incarnation} refused: the engines "
                f"are fenced to incarnation {fence}; a newer controller owns the run"
            )
        if self._members.weights is None:
            raise InvariantError(
                f"request {request.id} refused: no weights were loaded; call update_weights first"
            )
        if request.id in self._routes:
            raise InvariantError(f"request {request.id} refused: the id is still being generated")

    async def _choose(self, route: _Route) -> Place | None:
        """The serving member with the fewest requests; None once the request was aborted."""
        members, until = self._members, self._members.deadline()
        while not route.aborted:
            if members.fatal is not None:
                raise members.fatal
            if members.closing:
                raise InfrastructureFailure("the pool of engines was closed")
            if serving := members.serving:
                return min(serving, key=lambda place: (len(place.streams), place.number))
            if not await members.change(until):
                raise InfrastructureFailure(
                    f"no engine of {len(members.places)} has served for {self._timeout_s:g} s"
                )
        return None

    async def _stream(
        self, place: Place, request: GenerationRequest
    ) -> AsyncGenerator[TokenChunk, None]:
        """The chunks of one member, to their end; what takes the member out ends them too."""
        assert place.engine is not None
        stream = Stream()
        relay = asyncio.ensure_future(_relay(place.engine, request, into=stream))
        place.streams.add(stream)
        finished = False
        try:
            while not finished:
                item = await stream.get()
                if isinstance(item, OutlastError):
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            place.streams.discard(stream)
            relay.cancel()
            await asyncio.wait([relay])

    async def abort(self, request_id: str, /) -> None:
        route = self._routes.get(request_id)
        if route is None:
            return
        route.aborted = True
        self._members.notify()
        engine = None if route.place is None else route.place.engine
        if engine is not None:
            with contextlib.suppress(*LOST):
                await self._members.bounded(engine.abort(request_id), f"abort {request_id}")

    # ------------------------------------------------------------------------------ weights

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        """All living members load; one that fails is taken out. See the port."""
        members = self._members
        if isinstance(weights.payload, Mapping):
            payload = await asyncio.to_thread(
                self._transfer.publish, weights.payload, weights.version
            )
            weights = replace(weights, payload=payload)
        await members.load(weights)
        until = members.deadline()
        while not members.serving:
            if members.fatal is not None:
                raise members.fatal
            if not await members.change(until):
                raise StallAbort(
                    f"no engine of {len(members.places)} could load weights {weights.version} in "
                    f"{self._timeout_s:g} s; see their logs, then run the same command again"
                )
        self._served = weights.version
        return weights.version


async def _relay(engine: GenerationEngine, request: GenerationRequest, *, into: Stream) -> None:
    try:
        async for chunk in engine.generate(request):
            into.put_nowait(chunk)
        into.put_nowait(InfrastructureFailure(f"the stream of {request.id} broke off"))
    except OutlastError as error:
        into.put_nowait(error)
    except Exception as error:  # boundary: pool-relay, whose consumer would wait for ever
        bug = InvariantError(f"the engine failed at request {request.id}: {error!r}")
        bug.__cause__ = error
        into.put_nowait(bug)


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
    return TokenChunk(ids=none, logprobs=none.astype(np.float32), versions=none, finish="aborted")
