"""Validation: greedy rollouts on held-out prompts at one pinned version.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| a due period, held-out prompts | a value in the run's state | the weights gate | train, weights |

The weights pump waits for it; training and rollouts do not. Whether it is due follows from
`last_done`, so one that a crash interrupted runs first after the restart.
May import: `ports`, `runtime.board`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from outlast.errors import RolloutFailure
from outlast.ports import (
    Environment,
    GenerationEngine,
    GenerationRequest,
    PromptSource,
    Rollout,
    RolloutRequest,
    SamplingParams,
    TokenChunk,
)
from outlast.rows import Int32
from outlast.runtime.board import Board
from outlast.telemetry import events

DUTY = "val"
"""Name of the duty; its metric is `val:reward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSettings:
    """`period` in steps; 0 validates at the start and at the end only."""

    period: int
    size: int
    sampling: SamplingParams
    timeout_s: float


class ValidationPump:
    """Owns nothing: its value and its due date live in the run's state."""

    def __init__(
        self,
        board: Board,
        settings: ValidationSettings,
        *,
        engine: GenerationEngine,
        environment: Environment,
        prompts: PromptSource,
    ) -> None:
        self._board = board
        self._settings = settings
        self._engine = engine
        self._environment = environment
        self._prompts = prompts
        self._runs = 0

    async def run(self) -> None:
        """Validate whenever it is due, until the life ends."""
        while await self._board.until("validation", "its period", self._due):
            await self.validate()

    async def finish(self) -> None:
        """The validation at the end, unless this version has been validated."""
        if self._last() != self._board.acknowledged:
            await self.validate()

    async def validate(self) -> None:
        """Run all held-out prompts at the version that is served now."""
        board = self._board
        async with board.weights_gate:
            began, version = board.world.clock.monotonic(), board.acknowledged
            self._runs += 1
            count = min(self._settings.size, len(self._prompts))
            rollouts = await asyncio.gather(*(self._one(index) for index in range(count)))
        done = [rollout for rollout in rollouts if rollout is not None]
        reward = sum(rollout.reward for rollout in done) / max(1, count)
        tokens = sum(len(rollout.response_ids) for rollout in done) / max(1, len(done))
        board.state.done(DUTY, version, reward=reward)
        seconds = board.world.clock.monotonic() - began
        board.bus.emit(
            events.ValidationFinished(
                version=version,
                reward=reward,
                prompts=count,
                seconds=seconds,
                response_tokens_mean=tokens,
            )
        )
        board.changed.notify()

    def _last(self) -> int | None:
        return self._board.state.duties.last_done(DUTY)

    def _due(self) -> bool:
        last, version = self._last(), self._board.acknowledged
        if last is None:
            return True
        return self._settings.period > 0 and version - last >= self._settings.period

    async def _one(self, index: int) -> Rollout | None:
        """One prompt; a failure counts as reward 0, never as a crash."""

        def generate(prompt_ids: Int32, sampling: SamplingParams) -> AsyncIterator[TokenChunk]:
            request = GenerationRequest(
                id=f"val{self._runs}.{index}",
                incarnation=self._board.state.incarnation,
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=index,
            )
            return self._engine.generate(request)

        try:
            item = await self._board.world.offload(self._prompts.item, index)
            request = RolloutRequest(
                item=item, sampling=self._settings.sampling, seed=index, generate=generate
            )
            async with asyncio.timeout(self._settings.timeout_s):
                return await self._environment.rollout(request)
        except (RolloutFailure, TimeoutError) as error:
            self._board.bus.emit(events.Warned(message=f"validation prompt {index}: {error}"))
            return None
