"""An engine in a Ray actor of its own: port `GenerationEngine` for one member of a pool.

| loop    | consumes               | produces      | waits for            | unblocked by |
|---------|------------------------|---------------|----------------------|--------------|
| collect | the actor's outbox     | token chunks  | the actor, bounded   | the actor    |

One call in flight collects what happened to all requests, so a token costs no call of its own.
The death of the actor reaches every stream as InfrastructureFailure. May import: `ray_session`,
`ray_actor`, `ports`; ray when started.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, Literal

from outlast.adapters.engines.ray_actor import Batch, EngineActor, EngineSpec, Item
from outlast.adapters.ray_session import SESSION
from outlast.adapters.ray_signals import take_signals_back
from outlast.config.schema import GenerationSection, RaySection
from outlast.errors import InfrastructureFailure, InvariantError, OutlastError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationRequest, TokenChunk, Weights

COLLECT_S = 1.0
"""How long the actor may wait for something to report."""
CALLS_MAX = 100_000
"""Calls that an actor serves at once: every one of them awaits, none computes."""


class RayEngine:
    """See the module's docstring. `device` cuda asks Ray for one GPU."""

    def __init__(
        self,
        *,
        engine: Literal["torch", "vllm"],
        model_path: str,
        generation: GenerationSection,
        deterministic: bool,
        device: str,
        ray: RaySection,
    ) -> None:
        self._spec = EngineSpec(
            engine=engine,
            model_path=model_path,
            generation=generation,
            deterministic=deterministic,
            device=device,
        )
        self._settings = ray
        self._timeout_s = generation.health_timeout_s
        self._start_timeout_s = generation.start_timeout_s
        self._ray: Any = None
        self._actor: Any = None
        self._collector: asyncio.Task[None] | None = None
        self._tickets = itertools.count()
        self._streams: dict[int, asyncio.Queue[Item]] = {}
        self._served: WeightVersion | None = None
        self._dead: InfrastructureFailure | None = None

    @property
    def continues_prefixes(self) -> bool:
        return True  # both engines prefill what they are given

    @property
    def served(self) -> WeightVersion | None:
        return self._served

    async def start(self) -> None:
        """Start actor and engine. Raises RecipeError, or InfrastructureFailure in bounded time."""
        if self._ray is not None:
            raise InvariantError("RayEngine.start: already started; one start per engine")
        self._ray = await asyncio.to_thread(SESSION.acquire, self._settings)
        take_signals_back()
        remote = self._ray.remote(EngineActor).options(
            num_cpus=0,
            num_gpus=1 if self._spec.device.startswith("cuda") else 0,
            max_concurrency=CALLS_MAX,
            scheduling_strategy="SPREAD",
        )
        self._actor = remote.remote(self._spec)
        await self._call("start", within_s=self._start_timeout_s)
        self._collector = asyncio.ensure_future(self._collect())

    async def close(self) -> None:
        """Kill the actor; open streams raise InfrastructureFailure. Idempotent."""
        if self._ray is None:
            return
        ray, self._ray = self._ray, None
        if self._collector is not None:
            self._collector.cancel()
        self._died(InfrastructureFailure("the engine was closed"))
        if self._actor is not None:
            await asyncio.to_thread(ray.kill, self._actor)
        await asyncio.to_thread(SESSION.release)

    async def ping(self) -> None:
        """Raises InfrastructureFailure when the actor is dead or does not answer."""
        await self._call("ping")

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """See the port. The request is submitted when the stream is first awaited."""
        ticket, items = next(self._tickets), asyncio.Queue[Item]()
        self._streams[ticket] = items
        finished = False
        try:
            await self._call("submit", ticket, request)
            while not finished:
                item = await items.get()
                if isinstance(item, OutlastError):
                    finished = True
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            del self._streams[ticket]
            if not finished and self._dead is None:
                self._actor.drop.remote(ticket)

    async def abort(self, request_id: str, /) -> None:
        await self._call("abort", request_id)

    async def fence(self, incarnation: Incarnation, /) -> None:
        await self._call("fence", incarnation)

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        self._served = await self._call("update_weights", weights)
        return self._served

    # -------------------------------------------------------------------------------- calls

    async def _call(self, method: str, *arguments: object, within_s: float | None = None) -> Any:
        """Call the actor within the deadline. Its own refusals come back as they are."""
        if self._actor is None:
            raise InvariantError(f"RayEngine.{method}: used before start()")
        if self._dead is not None:
            raise self._dead
        reference = getattr(self._actor, method).remote(*arguments)
        seconds = within_s or self._timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await reference
        except TimeoutError as error:
            message = f"engine actor: no answer to {method} in {seconds:g} s"
            raise self._died(InfrastructureFailure(message)) from error
        except OutlastError as error:  # Ray gives its wrapper the class of what was raised
            raise getattr(error, "cause", error) from None
        except self._errors as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, OutlastError):
                raise cause from error
            raise self._died(InfrastructureFailure(f"engine actor: {_brief(error)}")) from error

    @property
    def _errors(self) -> Any:
        import ray

        return ray.exceptions.RayError

    async def _collect(self) -> None:
        while True:
            try:
                batch: Batch = await self._call("collect", COLLECT_S)
            except OutlastError as error:
                self._died(InfrastructureFailure(str(error)))
                return
            for ticket, item in batch:
                if ticket in self._streams:  # otherwise its consumer has gone
                    self._streams[ticket].put_nowait(item)

    def _died(self, cause: InfrastructureFailure) -> InfrastructureFailure:
        """Tell everybody who waits; the first cause stands."""
        if self._dead is None:
            self._dead = cause
            for items in self._streams.values():
                items.put_nowait(cause)
        return self._dead


def _brief(error: BaseException) -> str:
    """The first line; Ray's errors carry whole tracebacks."""
    return str(error).strip().split("\n", 1)[0]
