"""The vLLM generation engine: AsyncLLM behind the engine port, its core in processes of its own.

Response tokens, log-probabilities, versions and refusals are the embedded engine's; what differs is
said in docs/vllm.md: numbers depend on what else is in the batch, and a continued response draws
from another random stream. Children end with this process. May import: torch, transformers
(deferred), `config`, `ports`, the vllm modules beside it, `weight_transfer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast.adapters.engines.refusals import Limits, check_request
from outlast.adapters.engines.vllm_core import VllmCore, launch
from outlast.adapters.engines.vllm_settings import (
    check_sampling,
    engine_arguments,
    logprobs_mode,
    require_vllm,
)
from outlast.adapters.engines.vllm_stream import Stream
from outlast.adapters.torch_model import (
    check_state,
    empty_model,
    load_config,
    named_state,
    resolve_model_directory,
)
from outlast.adapters.weight_transfer import fetch
from outlast.config.schema import GenerationSection
from outlast.errors import InfrastructureFailure, InvariantError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationRequest, TokenChunk, Weights


class VllmEngine:
    """Port `GenerationEngine` on vLLM V1. See the module's docstring."""

    def __init__(
        self, *, model_path: str, generation: GenerationSection, device: str = "cpu"
    ) -> None:
        """Raises RecipeError for what vLLM cannot do as the recipe asks."""
        require_vllm()
        self.directory: Path = resolve_model_directory(model_path)
        self._settings = generation
        self._device = device
        self._mode = logprobs_mode(generation)
        engine_arguments(self.directory, generation, device=device)
        self._core: VllmCore | None = None
        self._closed = False
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._limits = Limits()
        self._running: dict[str, Stream] = {}
        self._fence: Incarnation | None = None
        self._served: WeightVersion | None = None

    @property
    def continues_prefixes(self) -> bool:
        return True

    @property
    def served(self) -> WeightVersion | None:
        return self._served

    async def start(self) -> None:
        """Start vLLM's processes. Raises RecipeError or InfrastructureFailure."""
        if self._core is not None or self._closed:
            raise InvariantError("VllmEngine.start: already started; one start per engine")
        config = await asyncio.to_thread(load_config, self.directory)
        self._shapes = await asyncio.to_thread(_shapes, config)
        self._core = VllmCore(await self._launch())
        self._limits = Limits(vocabulary=int(config.vocab_size), longest=self._core.longest)

    async def _launch(self) -> Any:
        loop = asyncio.get_running_loop()
        starting = loop.run_in_executor(
            None, lambda: launch(self.directory, self._settings, device=self._device)
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_discard)
            raise

    async def close(self) -> None:
        """End vLLM's processes. Streams still open raise InfrastructureFailure. Idempotent."""
        self._closed = True
        if self._core is not None:
            await self._core.close()

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """See the port. The request is submitted when the stream is first awaited."""
        core = self._alive()
        self._check(request)
        stream = Stream(request.id, request.incarnation)
        self._running[request.id] = stream
        try:
            await self._submit(request, stream)
            finished = False
            while not finished:
                chunk = await stream.read()
                finished = chunk.finish is not None
                yield chunk
        finally:
            self._running.pop(request.id, None)
            core.drop(stream)

    async def _submit(self, request: GenerationRequest, stream: Stream) -> None:
        """Give the request to vLLM, unless its prefix is a whole response."""
        sampling, prefix = request.sampling, request.prefix
        done = request.prompt_ids[:0] if prefix is None else prefix.ids
        context = np.concatenate([request.prompt_ids, done])
        budget = min(sampling.max_new_tokens - len(done), self._limits.longest - len(context))
        if len(done) and int(done[-1]) in sampling.stop_token_ids:
            stream.finish("stop")
        elif budget <= 0:
            stream.finish("length")
        else:
            await self._alive().add(
                stream,
                context,
                prefix=len(done),
                budget=budget,
                sampling=sampling,
                seed=request.seed,
            )

    async def abort(self, request_id: str, /) -> None:
        stream = self._running.get(request_id)
        if stream is not None and self._core is not None:
            stream.finish("aborted")
            self._core.drop(stream)

    async def fence(self, incarnation: Incarnation, /) -> None:
        core = self._alive()
        self._fence = incarnation
        for stream in self._running.values():
            if stream.incarnation != incarnation:
                stream.finish("aborted")
                core.drop(stream)

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        """See the port. Raises InvariantError, and changes nothing, for another model's weights."""
        core = self._alive()
        state = await asyncio.to_thread(fetch, weights.payload)
        check_state(state, self._shapes)
        await core.swap(state, weights.version)
        self._served = weights.version
        return weights.version

    def _check(self, request: GenerationRequest) -> None:
        check_request(
            request,
            fence=self._fence,
            served=self._served,
            running=self._running,
            limits=self._limits,
        )
        check_sampling(request, self._mode)

    def _alive(self) -> VllmCore:
        if self._closed:
            raise InfrastructureFailure("the vLLM engine is closed")
        if self._core is None:
            raise InvariantError("VllmEngine: used before start()")
        if self._core.failure is not None:
            raise InfrastructureFailure(str(self._core.failure)) from self._core.failure
        return self._core


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the parameters as the trainer has them, without their memory."""
    with torch.device("meta"):
        model = empty_model(config, dtype=torch.float32)
    return {name: tuple(value.shape) for name, value in named_state(model).items()}


def _discard(starting: asyncio.Future[Any]) -> None:
    """Nobody waits for this vLLM any more."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().shutdown()
