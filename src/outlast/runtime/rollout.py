"""Rollout pump: draws prompts, fills siblings, commits groups.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| prompts | sealed siblings, buffered groups | admission, permits, served weights | weights, train |

Laws: S3 (a late result never changes state), S4, L4. A failing prompt is data, never a crash.
May import: `model`, `ports`, `runtime.board`, `runtime.attempt`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from outlast.errors import DataFailure
from outlast.model.groups import Group, GroupState, RecoveryLevel
from outlast.model.ids import GroupId, SiblingIndex
from outlast.ports import DataPlane, Environment, GenerationEngine, PromptItem, PromptSource
from outlast.runtime.attempt import Attempts, AttemptSettings
from outlast.runtime.board import Board
from outlast.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """What the recipe says about generation and its failures. Times in seconds."""

    attempt: AttemptSettings
    max_inflight_groups: int
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
        self._attempts = Attempts(
            board, settings.attempt, engine=engine, environment=environment, plane=plane
        )
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
                if not await board.until("rollout", self._wants(), condition=self._has_work):
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
            board.prefixes.forget(group_id)
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
            lent = state.filter(group_id)
            board.bus.emit(events.GroupDropped(group=group_id, reason="filtered", lent=lent))
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
            self._attempts.unreadable(group.id, sibling.index, error=error)
            return None

    async def _siblings(self, group: Group, item: PromptItem) -> None:
        unsealed = [sibling.index for sibling in group.siblings if not sibling.sealed]
        try:
            async with asyncio.TaskGroup() as siblings:
                for index in unsealed:
                    siblings.create_task(self._sibling(group.id, index, item=item))
        except* _StartOver:
            self._supersede_running(group.id)

    def _supersede_running(self, group_id: GroupId) -> None:
        state = self._board.state
        for sibling in state.ledger.groups[group_id].siblings:
            if sibling.attempt.state == "dispatched":
                state.ledger.supersede(group_id, sibling.index)

    def _give_up(self, group_id: GroupId) -> None:
        board = self._board
        lent = board.state.give_up(group_id)
        board.prefixes.forget(group_id)
        board.bus.emit(events.GroupDropped(group=group_id, reason="gave_up", lent=lent))
        board.changed.notify()

    # --------------------------------------------------------------------------- one sibling

    async def _sibling(self, group_id: GroupId, index: SiblingIndex, *, item: PromptItem) -> None:
        """Attempts of one sibling until it is sealed; raises _StartOver when the group must end."""
        board, state = self._board, self._board.state
        failures = 0
        while not state.ledger.groups[group_id].siblings[index].sealed:
            kind = await self._attempts.run(self._attempts.dispatch(group_id, index), item)
            _stand_by_cancellation()
            if kind is None:
                continue
            level = state.ledger.groups[group_id].level
            if level is RecoveryLevel.PROMPT_GROUP or state.exhausted_budget(group_id) is not None:
                raise _StartOver
            delay = min(self._settings.backoff_max_s, self._settings.backoff_s * 2**failures)
            failures += 1
            await asyncio.sleep(delay * (0.5 + board.world.random.random()))


def _stand_by_cancellation() -> None:
    """An environment that swallowed our cancellation must not keep an abandoned sibling alive."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
