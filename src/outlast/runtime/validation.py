"""Validation: greedy rollouts on held-out prompts at one pinned version.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| a due period, held-out prompts | a value in the run's state | the weights gate | train, weights |

The weights pump waits for it; training and rollouts do not. Whether it is due follows from
`last_done`, so one that a crash interrupted runs first after the restart.
May import: `ports`, `model`, `world`, `runtime.board`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from outlast.errors import RolloutFailure
from outlast.model.ids import Incarnation
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
from outlast.world import Offload

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
        while await self._board.until("validation", "its period", condition=self._due):
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
            rollouts = await examine(
                self._prompts,
                self._settings,
                engine=self._engine,
                environment=self._environment,
                incarnation=board.state.incarnation,
                offload=board.world.offload,
                tag=f"val{self._runs}",
                warn=self._warn,
            )
        grade = Grade.of(rollouts)
        board.state.done(DUTY, version, reward=grade.reward)
        seconds = board.world.clock.monotonic() - began
        board.bus.emit(
            events.ValidationFinished(
                version=version,
                reward=grade.reward,
                prompts=grade.prompts,
                seconds=seconds,
                response_tokens_mean=grade.response_tokens,
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

    def _warn(self, message: str) -> None:
        self._board.bus.emit(events.Warned(message=f"validation {message}"))


async def examine(
    prompts: PromptSource,
    settings: ValidationSettings,
    *,
    engine: GenerationEngine,
    environment: Environment,
    incarnation: Incarnation,
    offload: Offload,
    tag: str,
    warn: Callable[[str], None],
) -> tuple[Rollout | None, ...]:
    """The first `settings.size` prompts, once each, at the weights that `engine` serves.

    `tag` tells its requests from others. None where a prompt failed, which counts as reward 0 and
    is told to `warn`, never raised.
    """

    async def one(index: int) -> Rollout | None:
        def generate(prompt_ids: Int32, sampling: SamplingParams) -> AsyncIterator[TokenChunk]:
            request = GenerationRequest(
                id=f"{tag}.{index}",
                incarnation=incarnation,
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=index,
            )
            return engine.generate(request)

        try:
            item = await offload(prompts.item, index)
            request = RolloutRequest(
                item=item, sampling=settings.sampling, seed=index, generate=generate
            )
            async with asyncio.timeout(settings.timeout_s):
                return await environment.rollout(request)
        except (RolloutFailure, TimeoutError) as error:
            warn(f"prompt {index}: {error}")
            return None

    count = min(settings.size, len(prompts))
    return tuple(await asyncio.gather(*(one(index) for index in range(count))))


@dataclass(frozen=True, slots=True)
class Grade:
    """Means over an examination; a failed prompt has reward 0 and no tokens."""

    prompts: int
    failed: int
    reward: float
    response_tokens: float

    @classmethod
    def of(cls, rollouts: Sequence[Rollout | None]) -> Grade:
        """Grade what `examine` returned."""
        done = [rollout for rollout in rollouts if rollout is not None]
        return cls(
            prompts=len(rollouts),
            failed=len(rollouts) - len(done),
            reward=sum(rollout.reward for rollout in done) / max(1, len(rollouts)),
            response_tokens=sum(len(r.response_ids) for r in done) / max(1, len(done)),
        )
