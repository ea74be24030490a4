"""Inside a Ray actor: an engine, and an outbox that is emptied by one call for all its requests.

May import: `ports`, `weight_transfer`; the engine it was asked for, when it is built.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outlast.adapters.weight_transfer import fetch
from outlast.config.schema import GenerationSection
from outlast.errors import InfrastructureFailure, OutlastError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationEngine, GenerationRequest, TokenChunk, Weights

Item = TokenChunk | OutlastError
Batch = Sequence[tuple[int, Item]]
"""(ticket, what happened to it), in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Plain values from which the actor builds its engine."""

    engine: Literal["torch", "vllm"]
    model_path: str
    generation: GenerationSection
    deterministic: bool
    device: str

    def build(self) -> GenerationEngine:
        """Raises RecipeError."""
        if self.engine == "vllm":
            from outlast.adapters.engines.vllm_engine import VllmEngine

            return VllmEngine(
                model_path=self.model_path, generation=self.generation, device=self.device
            )
        from outlast.adapters.engines.torch_engine import TorchEngine

        return TorchEngine(
            model_path=self.model_path,
            generation=self.generation,
            deterministic=self.deterministic,
            device=self.device,
        )


class EngineActor:
    """The class of the actor; every method runs on its event loop."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._engine: GenerationEngine | None = None
        self._outbox: list[tuple[int, Item]] = []
        self._filled = asyncio.Event()
        self._relays: dict[int, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Build and start the engine. Raises RecipeError."""
        self._engine = await asyncio.to_thread(self._spec.build)
        await self._engine.start()

    async def ping(self) -> None:
        """Answers while the event loop turns."""

    async def submit(self, ticket: int, request: GenerationRequest) -> None:
        """Begin a request; everything that comes of it goes to the outbox under `ticket`."""
        relay = asyncio.ensure_future(self._relay(ticket, request))
        self._relays[ticket] = relay
        relay.add_done_callback(lambda _: self._relays.pop(ticket, None))

    async def _relay(self, ticket: int, request: GenerationRequest) -> None:
        try:
            async for chunk in self._alive.generate(request):
                self._post(ticket, chunk)
        except OutlastError as error:
            self._post(ticket, error)
        except Exception as error:  # boundary: engine-actor
            self._post(ticket, InfrastructureFailure(f"the engine failed: {error!r}"))

    def _post(self, ticket: int, item: Item) -> None:
        self._outbox.append((ticket, item))
        self._filled.set()

    async def collect(self, wait_s: float) -> Batch:
        """What has happened since the last call; waits up to `wait_s` for something."""
        try:
            async with asyncio.timeout(wait_s):
                await self._filled.wait()
        except TimeoutError:
            return ()
        batch, self._outbox = self._outbox, []
        self._filled.clear()
        return batch

    async def drop(self, ticket: int) -> None:
        """Nobody listens to `ticket` any more: end its request."""
        if (relay := self._relays.get(ticket)) is not None:
            relay.cancel()

    async def abort(self, request_id: str) -> None:
        """See the port."""
        await self._alive.abort(request_id)

    async def fence(self, incarnation: Incarnation) -> None:
        """See the port."""
        await self._alive.fence(incarnation)

    async def update_weights(self, weights: Weights) -> WeightVersion:
        """Fetch what the payload points at, and load it."""
        state = await asyncio.to_thread(fetch, weights.payload)
        return await self._alive.update_weights(Weights(version=weights.version, payload=state))

    async def close(self) -> None:
        """End the engine."""
        if self._engine is not None:
            await self._engine.close()

    @property
    def _alive(self) -> GenerationEngine:
        if self._engine is None:
            raise InfrastructureFailure("the engine actor was used before its start")
        return self._engine
