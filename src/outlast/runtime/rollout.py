"""Rollout pump: draws prompts, fills siblings, commits groups.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| prompts | sealed siblings, buffered groups | admission, permits, served weights | weights, train |

Laws: S3 (a late result never changes state), S4, L4. A failing prompt is data, never a crash.
May import: `model`, `ports`, `rows`, `runtime.board`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from outlast.errors import DataFailure, InfrastructureFailure, RolloutFailure
from outlast.model.groups import FailureKind, Group, GroupState, Receipt, RecoveryLevel
from outlast.model.ids import AttemptKey, GroupId, SiblingIndex, TrainerVersion
from outlast.model.ledger import Verdict
from outlast.ports import (
    DataPlane,
    Environment,
    GenerationEngine,
    GenerationRequest,
    PromptItem,
    PromptSource,
    Rollout,
    RolloutRequest,
    SamplingParams,
    TokenChunk,
)
from outlast.rows import Int32, Row
from outlast.runtime.board import Board, InFlight
from outlast.runtime.seeds import attempt_seed, sibling_seed
from outlast.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """What the recipe says about generation and its failures. Times in seconds."""

    seed: int
    deterministic: bool
    sampling: SamplingParams
    max_inflight_groups: int
    rollout_timeout_s: float
    backoff_s: float
    backoff_max_s: float
    filter_zero_variance: bool


class _StartOver(Exception):
    """A sibling failed at level prompt_group: every sibling of the group runs again."""


class RolloutPump:
    """Owns the tasks of groups in flight; everything restart-facing lives in the state."""

    def __init__(
        self,
        board: Board,
        settings: RolloutSettings,
        *,
        engine: GenerationEngine,
        environment: Environment,
        prompts: PromptSource,
        plane: DataPlane,
    ) -> None:
        self._board = board
        self._settings = settings
        self._engine = engine
        self._environment = environment
        self._prompts = prompts
        self._plane = plane
        self._slots = asyncio.Semaphore(settings.max_inflight_groups)
        self._tasks: dict[GroupId, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Relaunch restored groups, then admit until training is done or a stop is requested."""
        board = self._board
        async with asyncio.TaskGroup() as tasks:
            for group in self._restored():
                self._launch(tasks, group)
            while not board.training_done:
                if not await board.until("rollout", self._wants(), self._has_work):
                    break
                self._drop_stale()
                await self._plane.release(board.take_orphans())
                if board.state.admissible(board.acknowledged):
                    self._admit(tasks)
            for task in self._tasks.values():
                task.cancel()

    # ------------------------------------------------------------------------------ admission

    def _has_work(self) -> bool:
        state, board = self._board.state, self._board
        return (
            board.training_done
            or state.admissible(board.acknowledged) > 0
            or state.has_stale()
            or board.has_orphans()
        )

    def _wants(self) -> str:
        return "data or a permit" if self._board.state.drained else "admission or a permit"

    def _restored(self) -> list[Group]:
        groups = self._board.state.ledger.groups.values()
        unfinished = [g for g in groups if g.state in (GroupState.OPEN, GroupState.COMPLETE)]
        return sorted(unfinished, key=lambda g: (g.target_step or 0, g.id))

    def _admit(self, tasks: asyncio.TaskGroup) -> None:
        board = self._board
        admitted = board.state.admit(board.acknowledged)
        board.bus.emit(
            events.GroupsAdmitted(
                groups=tuple(g.id for g in admitted), target_step=admitted[0].target_step
            )
        )
        board.world.perhaps("rollout.admitted")
        for group in admitted:
            self._launch(tasks, group)

    def _drop_stale(self) -> None:
        """Evict what the sampler gave up on; tasks of aborted groups end without a trace."""
        board = self._board
        for group_id in board.state.evict_stale():
            board.bus.emit(events.GroupDropped(group=group_id, reason="stale"))
            if (task := self._tasks.get(group_id)) is not None:
                task.cancel()

    def _launch(self, tasks: asyncio.TaskGroup, group: Group) -> None:
        task = tasks.create_task(self._group(group.id), name=f"group-{group.id}")
        self._tasks[group.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(group.id, None))

    # ---------------------------------------------------------------------------- one group

    async def _group(self, group_id: GroupId) -> None:
        board, state = self._board, self._board.state
        async with self._slots:
            alive = await self._fill(group_id)
        if not alive:
            return
        board.world.perhaps("rollout.before_complete")
        group = state.ledger.groups[group_id]
        if group.state is GroupState.OPEN:
            group = state.complete(group_id)
        rewards, keep = self._environment.shape(group.receipts())
        if self._settings.filter_zero_variance and len(set(rewards)) == 1:
            state.filter(group_id)
            board.bus.emit(events.GroupDropped(group=group_id, reason="filtered"))
        else:
            state.commit(group_id, rewards=rewards, keep=keep)
            tokens = sum(receipt.response_tokens for receipt in group.receipts())
            mean = sum(rewards) / len(rewards)
            board.bus.emit(events.GroupCommitted(group=group_id, reward_mean=mean, tokens=tokens))
            board.world.perhaps("rollout.committed")
        board.changed.notify()

    async def _fill(self, group_id: GroupId) -> bool:
        """Run attempts until every sibling is sealed; False when the prompt was given up."""
        state = self._board.state
        item: PromptItem | None = None
        while True:
            group = state.ledger.groups[group_id]
            if group.all_sealed:
                return True
            if state.exhausted_budget(group_id) is not None:
                self._give_up(group_id)
                return False
            if item is None:
                item = await self._item(group)
            if item is not None:
                await self._siblings(group, item)

    async def _item(self, group: Group) -> PromptItem | None:
        """Read the prompt's text; an unreadable row is a data failure of every sibling."""
        board = self._board
        try:
            return await board.world.offload(self._prompts.item, group.prompt.index)
        except DataFailure as error:
            sibling = next(s for s in group.siblings if not s.sealed)
            key = board.state.dispatch(group.id, sibling.index, version=board.acknowledged)
            self._failed(key, FailureKind.DATA, error)
            return None

    async def _siblings(self, group: Group, item: PromptItem) -> None:
        unsealed = [sibling.index for sibling in group.siblings if not sibling.sealed]
        try:
            async with asyncio.TaskGroup() as siblings:
                for index in unsealed:
                    siblings.create_task(self._sibling(group.id, index, item))
        except* _StartOver:
            self._supersede_running(group.id)

    def _supersede_running(self, group_id: GroupId) -> None:
        state = self._board.state
        for sibling in state.ledger.groups[group_id].siblings:
            if sibling.attempt.state == "dispatched":
                state.ledger.supersede(group_id, sibling.index)

    def _give_up(self, group_id: GroupId) -> None:
        board = self._board
        board.state.give_up(group_id)
        board.bus.emit(events.GroupDropped(group=group_id, reason="gave_up"))
        board.changed.notify()

    # --------------------------------------------------------------------------- one sibling

    async def _sibling(self, group_id: GroupId, index: SiblingIndex, item: PromptItem) -> None:
        """Attempts of one sibling until it is sealed; raises _StartOver when the group must end."""
        board, state = self._board, self._board.state
        failures = 0
        while not state.ledger.groups[group_id].siblings[index].sealed:
            key = state.dispatch(group_id, index, version=board.acknowledged)
            kind = await self._attempt(key, item)
            _stand_by_cancellation()
            if kind is None:
                continue
            level = state.ledger.groups[group_id].level
            if level is RecoveryLevel.PROMPT_GROUP or state.exhausted_budget(group_id) is not None:
                raise _StartOver
            delay = min(self._settings.backoff_max_s, self._settings.backoff_s * 2**failures)
            failures += 1
            await asyncio.sleep(delay * (0.5 + board.world.random.random()))

    async def _attempt(self, key: AttemptKey, item: PromptItem) -> FailureKind | None:
        """One try. None when its row was offered to the ledger, else the budget to charge."""
        board = self._board
        started = board.world.clock.monotonic()
        board.inflight[key] = InFlight(started=started)
        board.bus.emit(events.AttemptDispatched(key=str(key), version=board.acknowledged))
        try:
            async with asyncio.timeout(self._settings.rollout_timeout_s):
                rollout = await self._environment.rollout(self._request(key, item))
            await self._seal(key, rollout, seconds=board.world.clock.monotonic() - started)
            return None
        except RolloutFailure as error:
            kind = (
                FailureKind.DATA if isinstance(error, DataFailure) else FailureKind.INFRASTRUCTURE
            )
            return self._failed(key, kind, error)
        except TimeoutError:
            late = InfrastructureFailure(f"no answer in {self._settings.rollout_timeout_s:g} s")
            return self._failed(key, FailureKind.INFRASTRUCTURE, late)
        finally:
            board.inflight.pop(key, None)

    def _failed(self, key: AttemptKey, kind: FailureKind, error: RolloutFailure) -> FailureKind:
        verdict = self._board.state.fail(key, kind)
        cause = f"{type(error).__name__}: {error}"
        if verdict is Verdict.ACCEPTED:
            event = events.AttemptFailed(key=str(key), kind=kind.value, cause=cause)
            self._board.bus.emit(event)
        return kind

    def _request(self, key: AttemptKey, item: PromptItem) -> RolloutRequest:
        turn = 0

        def generate(prompt_ids: Int32, sampling: SamplingParams) -> AsyncIterator[TokenChunk]:
            nonlocal turn
            turn += 1
            seed = attempt_seed(
                self._settings.seed, key, turn=turn, repeatable=self._settings.deterministic
            )
            request = GenerationRequest(
                id=f"{key}.t{turn}",
                incarnation=key.incarnation,
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=seed,
            )
            return self._counted(key, request)

        return RolloutRequest(
            item=item,
            sampling=self._settings.sampling,
            seed=sibling_seed(self._settings.seed, key),
            generate=generate,
        )

    async def _counted(
        self, key: AttemptKey, request: GenerationRequest
    ) -> AsyncIterator[TokenChunk]:
        board = self._board
        async for chunk in self._engine.generate(request):
            board.generated_tokens += len(chunk.ids)
            if (flight := board.inflight.get(key)) is not None:
                flight.tokens += len(chunk.ids)
            yield chunk

    async def _seal(self, key: AttemptKey, rollout: Rollout, *, seconds: float) -> None:
        """Store the row, then offer it; a row the ledger refuses is released and counted (S3)."""
        board = self._board
        row = _row(key, rollout)
        try:
            (digest,) = await self._plane.put([row])
        except asyncio.CancelledError:
            board.orphan([key])  # stored or not: nobody will name it
            raise
        receipt = _receipt(row, rollout, digest, board.acknowledged)
        board.world.perhaps("rollout.before_seal")
        verdict = board.state.seal(receipt)
        if verdict is not Verdict.ACCEPTED:
            board.bus.emit(events.ResultIgnored(key=str(key), verdict=verdict.value))
            board.orphan([key])
            return
        board.sealed_since_cut[key] = receipt.response_tokens
        board.bus.emit(
            events.SiblingSealed(
                key=str(key),
                tokens=receipt.response_tokens,
                reward=receipt.reward,
                versions=(receipt.min_version, receipt.max_version),
                seconds=seconds,
            )
        )
        board.world.perhaps("rollout.after_seal")
        board.changed.notify()


def _stand_by_cancellation() -> None:
    """An environment that swallowed our cancellation must not keep an abandoned sibling alive."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _row(key: AttemptKey, rollout: Rollout) -> Row:
    return Row(
        key=key,
        prompt_ids=rollout.prompt_ids,
        response_ids=rollout.response_ids,
        logprobs=rollout.logprobs,
        weight_versions=rollout.weight_versions,
        loss_mask=rollout.loss_mask,
        reward=rollout.reward,
        mask_sample=rollout.mask_sample,
        extras=rollout.extras,
    )


def _receipt(row: Row, rollout: Rollout, digest: str, served: TrainerVersion) -> Receipt:
    versions = row.weight_versions[row.loss_mask]
    return Receipt(
        key=row.key,
        digest=digest,
        reward=float(np.float32(rollout.reward)),  # as the row stores it
        prompt_tokens=len(row.prompt_ids),
        response_tokens=len(row.response_ids),
        min_version=TrainerVersion(int(versions.min())) if len(versions) else served,
        max_version=TrainerVersion(int(versions.max())) if len(versions) else served,
        truncated=rollout.truncated,
        mask_sample=rollout.mask_sample,
    )
