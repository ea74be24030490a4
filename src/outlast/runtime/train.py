"""Train pump: streamed optimizer steps over claimed groups.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| buffered groups | optimizer steps, APPLIED groups | the sampler's selection | rollout |

Laws: S1 (a step is applied in one synchronous section, or not at all), S8, L4. A stop request
interrupts every wait but never `finish_step`: weights and records stay together.
May import: `model`, `ports`, `runtime.board`, `runtime.checkpoint`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

from outlast.model.groups import Group
from outlast.model.ids import GroupId, Step, next_step
from outlast.ports import StepOutcome, Trainer, TrainGroup
from outlast.runtime.board import Board
from outlast.runtime.checkpoint import CheckpointPump
from outlast.telemetry import events
from outlast.telemetry.bus import Bus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Bounds of the train pump, in groups and steps."""

    max_steps: int
    chunk_groups_min: int


@dataclass(slots=True)
class _OpenStep:
    step: Step
    claimed: list[GroupId]
    chunks: list[int]
    wait_s: float = 0.0


class TrainPump:
    """Selects, claims, accumulates, finishes; one step at a time."""

    def __init__(
        self,
        board: Board,
        settings: TrainSettings,
        *,
        trainer: Trainer,
        checkpoints: CheckpointPump,
    ) -> None:
        self._board = board
        self._settings = settings
        self._trainer = trainer
        self._checkpoints = checkpoints

    async def run(self) -> None:
        """Train until the target, the end of the data, or a stop request."""
        board = self._board
        while board.state.version < self._settings.max_steps and board.stopping is None:
            if not await self._step(next_step(board.state.version)):
                break
        if board.stopping is None:
            board.finish_training()

    async def _step(self, step: Step) -> bool:
        """One optimizer step; False when the data has ended or a stop was requested."""
        board = self._board
        began = board.world.clock.monotonic()
        current = _OpenStep(step=step, claimed=[], chunks=[])
        while not self._full(current):
            chunk = await self._next_chunk(current)
            if chunk is None:
                return False
            if not chunk:
                break
            first = not current.claimed
            groups = self._claim(current, chunk)  # before any await: a sampler might evict them
            if first:
                await self._trainer.begin_step(step)
            if await self._interruptible(self._trainer.accumulate(train_groups(groups))) is False:
                return False
            board.world.perhaps("train.accumulated")
        if not await self._checkpoints.ready():
            return False
        board.world.perhaps("train.before_finish")
        outcome = await self._trainer.finish_step()
        board.world.perhaps("train.after_finish")
        self._apply(current, outcome, began=began)
        return True

    def _full(self, current: _OpenStep) -> bool:
        return bool(current.claimed) and len(current.claimed) >= self._board.state.wanted(
            current.step
        )

    async def _next_chunk(self, current: _OpenStep) -> tuple[GroupId, ...] | None:
        """Groups to claim next: none when the step is full by now, None when the run stops or no
        step can be filled any more."""
        board = self._board
        started = board.world.clock.monotonic()
        what = f"groups for step {current.step} ({len(current.claimed)} claimed)"
        while True:
            if board.stopping is not None:
                return None
            board.state.close_ranks(current.step)
            if self._full(current):
                return ()  # a prompt was given up meanwhile: the step is smaller than it was
            if picked := self._select(current):
                current.wait_s += board.world.clock.monotonic() - started
                return picked
            if await self._ended(current):
                return None
            await board.waiting("train", what)

    def _select(self, current: _OpenStep) -> tuple[GroupId, ...]:
        state = self._board.state
        missing = state.wanted(current.step) - len(current.claimed)
        if missing <= 0 or self._too_small(current):
            return ()
        at_least = min(self._settings.chunk_groups_min, missing)
        return state.select(at_least=at_least, at_most=missing)

    def _too_small(self, current: _OpenStep) -> bool:
        """Whether the data has ended with too few groups left for a step."""
        state = self._board.state
        return state.wanted(current.step) < state.plan.step_groups_min

    async def _ended(self, current: _OpenStep) -> bool:
        """Settle a remainder that no step will train; True when nothing is left to train."""
        board, state = self._board, self._board.state
        if not state.drained:
            return False
        if current.claimed and self._too_small(current):
            await self._trainer.abort_step()
            state.unclaim(current.claimed)
            current.claimed.clear()
            current.chunks.clear()
        if state.end_of_data():
            board.changed.notify()
        return not any(group.holds_permit for group in state.ledger.groups.values())

    def _claim(self, current: _OpenStep, chunk: Sequence[GroupId]) -> tuple[Group, ...]:
        """Selection and claim are one section; within a chunk, groups train in draw order."""
        groups = self._board.state.claim(sorted(chunk), current.step)
        current.claimed.extend(group.id for group in groups)
        current.chunks.append(len(groups))
        self._board.world.perhaps("train.after_claim")
        return groups

    async def _interruptible(self, work: Awaitable[None]) -> bool:
        """Await `work`, but leave it behind when a stop is requested (False)."""
        task = asyncio.ensure_future(work)
        board = self._board
        task.add_done_callback(lambda _: board.changed.notify())
        try:
            while not task.done():
                if board.stopping is not None:
                    return False
                await board.waiting("train", "the trainer to accumulate a chunk")
        finally:
            if not task.done():
                task.cancel()
        task.result()
        return True

    def _apply(self, current: _OpenStep, outcome: StepOutcome, *, began: float) -> None:
        """Version, history, ledger, journal and the bundled cut move in this one section."""
        board, state = self._board, self._board.state
        version = state.version
        lags = tuple(version - state.ledger.groups[group].version for group in current.claimed)
        metrics = finite(outcome.metrics, bus=board.bus)
        record = state.apply(current.claimed, chunks=current.chunks, outcome=metrics)
        self._checkpoints.step_finished(final=state.version >= self._settings.max_steps)
        board.bus.emit(
            events.StepFinished(
                step=record.step,
                groups=record.groups,
                chunks=record.chunks,
                metrics=record.outcome,
                lags=lags,
                wait_s=current.wait_s,
                train_s=board.world.clock.monotonic() - began - current.wait_s,
            )
        )
        board.world.perhaps("train.applied")
        board.changed.notify()


def finite(metrics: Mapping[str, float], *, bus: Bus) -> dict[str, float]:
    """The metrics that a record can hold; JSON has no NaN, and a metric must not stop a run."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            bus.emit(events.Warned(message=f"metric {name} is {value} and is not recorded"))
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def train_groups(groups: Sequence[Group]) -> tuple[TrainGroup, ...]:
    """What a trainer is told of groups: metadata only, tensors stay in the plane."""
    return tuple(
        TrainGroup(
            id=group.id,
            keys=tuple(receipt.key for receipt in group.receipts()),
            rewards=group.trained_rewards,
            keep=group.keep,
        )
        for group in groups
    )
