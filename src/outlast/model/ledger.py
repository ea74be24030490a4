"""The recovery ledger: sole owner of every unsettled prompt group, driven by one transition table.

Laws: S1 (trained once), S3 (only the current attempt of this incarnation changes state), S5
(permits move exactly when a group enters or leaves a permit state, so no caller can leak one).
Settled groups leave: they are counted here and recorded by the owner's journal.
May import: `ids`, `groups`, `permits`, `table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from outlast.errors import InvariantError, TransitionRefused
from outlast.model.cut import SettledCounts
from outlast.model.groups import (
    Attempt,
    AttemptState,
    DrawnPrompt,
    DropReason,
    FailureKind,
    Group,
    GroupState,
    Receipt,
    RecoveryLevel,
    Sibling,
)
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex, Step, TrainerVersion
from outlast.model.permits import Permits
from outlast.model.table import Event, Refusal, targets

ABRUPT_ENDS_MAX = 3
"""Abrupt ends in a row after which a sibling's prompt is suspected of killing the controller."""


SUSPECTS_MAX = 8
"""With more siblings in flight an abrupt end says nothing about any one of them."""


def in_flight(groups: Iterable[Group]) -> int:
    """Siblings whose attempt was dispatched and has no result."""
    flying = AttemptState.DISPATCHED
    return sum(s.attempt.state is flying for group in groups for s in group.siblings)


class Verdict(StrEnum):
    """What the ledger made of a result."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    STALE = "stale"


class Ledger:
    """Groups by id. Every mutation is one event of the table, applied synchronously."""

    def __init__(
        self,
        *,
        incarnation: Incarnation,
        permits: Permits,
        groups: Iterable[Group] = (),
        settled: SettledCounts | None = None,
    ) -> None:
        self.incarnation = incarnation
        self.permits = permits
        self._groups: dict[GroupId, Group] = {}
        self._trained = settled.trained if settled else 0
        self._dropped = dict(settled.dropped) if settled else {}
        self._released: list[AttemptKey] = []
        for group in groups:
            self._groups[group.id] = group
            if group.holds_permit:
                permits.acquire(group.id)

    # ---------------------------------------------------------------------------- reading

    @property
    def groups(self) -> Mapping[GroupId, Group]:
        """Read-only view of all unsettled groups."""
        return MappingProxyType(self._groups)

    @property
    def settled(self) -> SettledCounts:
        return SettledCounts(trained=self._trained, dropped=dict(self._dropped))

    def image(self) -> tuple[Group, ...]:
        """All unsettled groups by id: the ledger's part of a cut, O(groups) pointer copies."""
        return tuple(self._groups[group_id] for group_id in sorted(self._groups))

    @property
    def has_released(self) -> bool:
        """Whether `take_released` would return anything."""
        return bool(self._released)

    def take_released(self) -> tuple[AttemptKey, ...]:
        """Keys of rows the ledger has let go of since the last call; the plane may forget them."""
        released, self._released = tuple(self._released), []
        return released

    # ------------------------------------------------------------------ birth and siblings

    def admit(
        self,
        drawn: DrawnPrompt,
        *,
        siblings: int,
        level: RecoveryLevel,
        version: TrainerVersion,
        target: Step | None,
    ) -> Group:
        """A drawn prompt becomes an OPEN group and takes a permit."""
        self._resolve(drawn.id, Event.ADMIT)
        group = Group(
            id=drawn.id,
            prompt=drawn.prompt,
            state=GroupState.OPEN,
            level=level,
            siblings=tuple(self._reserve(drawn.id, i, version=version) for i in range(siblings)),
            target_step=target,
            step=None,
            position=None,
            trained_rewards=(),
            keep=(),
            dropped=None,
        )
        self._groups[group.id] = group
        self.permits.acquire(group.id)
        return group

    def dispatch(
        self, group_id: GroupId, index: SiblingIndex, *, version: TrainerVersion
    ) -> AttemptKey:
        """Start the next attempt of an unsealed sibling; restamps its version."""
        self._resolve(group_id, Event.DISPATCH)
        group = self._groups[group_id]
        sibling = group.siblings[index]
        last = sibling.attempt
        if last.state in (AttemptState.SEALED, AttemptState.DISPATCHED):
            raise TransitionRefused(
                f"dispatch of group {group_id} sibling {index}: its attempt {last.key} is "
                f"{last.state}; only a reserved, failed or superseded one is followed by another"
            )
        key = self._following(last)
        self._replace_sibling(
            group,
            msgspec.structs.replace(
                sibling, attempt=Attempt(key=key, state=AttemptState.DISPATCHED, version=version)
            ),
        )
        return key

    def seal(self, receipt: Receipt) -> Verdict:
        """Fill a sibling. Late, foreign and superseded results are STALE and change nothing.

        An identical duplicate is a no-op; a different one raises InvariantError.
        """
        sibling = self._current(receipt.key)
        if sibling is None:
            return Verdict.STALE
        if sibling.receipt is not None:
            if sibling.receipt != receipt:
                raise InvariantError(
                    f"two different results for {receipt.key}: row {sibling.receipt.digest[:12]} "
                    f"is sealed, row {receipt.digest[:12]} arrived"
                )
            return Verdict.DUPLICATE
        if sibling.attempt.state is not AttemptState.DISPATCHED:
            return Verdict.STALE
        self._resolve(receipt.key.group, Event.SEAL)
        attempt = msgspec.structs.replace(sibling.attempt, state=AttemptState.SEALED)
        self._replace_sibling(
            self._groups[receipt.key.group],
            msgspec.structs.replace(sibling, attempt=attempt, receipt=receipt, abrupt_ends=0),
        )
        return Verdict.ACCEPTED

    def fail(self, key: AttemptKey, kind: FailureKind) -> Verdict:
        """An attempt ended without a row. At level prompt_group the whole group starts over."""
        sibling = self._current(key)
        if sibling is None or sibling.attempt.state is not AttemptState.DISPATCHED:
            return Verdict.STALE
        self._resolve(key.group, Event.FAIL)
        attempt = msgspec.structs.replace(sibling.attempt, state=AttemptState.FAILED)
        infrastructure = sibling.infrastructure_failures + (kind is FailureKind.INFRASTRUCTURE)
        failed = msgspec.structs.replace(
            sibling,
            attempt=attempt,
            infrastructure_failures=infrastructure,
            data_failures=sibling.data_failures + (kind is FailureKind.DATA),
        )
        self._replace_sibling(self._groups[key.group], failed)
        if self._groups[key.group].level is RecoveryLevel.PROMPT_GROUP:
            self._start_over(key.group)
        return Verdict.ACCEPTED

    def supersede(self, group_id: GroupId, index: SiblingIndex) -> None:
        """Give up the sibling's current attempt (not a failure); a dispatch may follow."""
        self._resolve(group_id, Event.SUPERSEDE)
        group = self._groups[group_id]
        self._replace_sibling(group, self._superseded(group.siblings[index]))

    # --------------------------------------------------------------------------- group events

    def complete(self, group_id: GroupId) -> Group:
        """Every sibling is sealed; group work may run."""
        self._resolve(group_id, Event.COMPLETE)
        if not self._groups[group_id].all_sealed:
            raise TransitionRefused(f"complete of group {group_id} with an unsealed sibling")
        return self._move(group_id, Event.COMPLETE)

    def commit(
        self,
        group_id: GroupId,
        *,
        rewards: tuple[float, ...],
        keep: tuple[bool, ...],
        position: int,
    ) -> Group:
        """Group work is done: the group becomes selectable at `position` of the buffer order."""
        return self._move(
            group_id, Event.COMMIT, trained_rewards=rewards, keep=keep, position=position
        )

    def claim(self, group_id: GroupId, step: Step) -> Group:
        """Select the group for `step`; rows and permit are kept until the step is applied."""
        return self._move(group_id, Event.CLAIM, step=step)

    def unclaim(self, group_id: GroupId) -> Group:
        """The step was abandoned before it finished: back to its old place in the buffer."""
        return self._move(group_id, Event.UNCLAIM, step=None)

    def apply(self, group_id: GroupId) -> Group:
        """The optimizer step of a claimed (or replayed) group has happened."""
        return self._move(group_id, Event.APPLY)

    def durable(self, group_id: GroupId) -> Group:
        """A durable trainer checkpoint covers the group's step: it is trained for good."""
        return self._settle(self._move(group_id, Event.DURABLE))

    def promote(self, group_id: GroupId, target: Step) -> Group:
        """Restamp the group for another step."""
        return self._move(group_id, Event.PROMOTE, target_step=target)

    def drop(self, group_id: GroupId, event: Event, *, reason: DropReason) -> Group:
        """Settle without training, by one of the events that end in DROPPED."""
        return self._settle(self._move(group_id, event, dropped=reason))

    def reopen(self, group_id: GroupId, *, anchor_step: int, abrupt: bool) -> Group:
        """A new incarnation takes the group over; `anchor_step` is the restored trainer version."""
        allowed = self._resolve(group_id, Event.REOPEN)
        group = self._groups[group_id]
        if GroupState.TRAINED in allowed:
            covered = group.step is not None and group.step <= anchor_step
            target = GroupState.TRAINED if covered else GroupState.REPLAY
            group = self._enter(group, target)
            return self._settle(group) if covered else group
        step = None if group.state is GroupState.CLAIMED else group.step
        siblings = tuple(self._reopened(sibling, abrupt=abrupt) for sibling in group.siblings)
        self._enter(msgspec.structs.replace(group, siblings=siblings, step=step), allowed[0])
        if group.level is RecoveryLevel.PROMPT_GROUP and not group.all_sealed:
            self._start_over(group_id)
        return self._groups[group_id]

    # ------------------------------------------------------------------------------ internals

    def _resolve(self, group_id: GroupId, event: Event) -> tuple[GroupState, ...]:
        group = self._groups.get(group_id)
        found = targets(group.state if group else None, event)
        if isinstance(found, Refusal):
            state = group.state if group else "not in the ledger"
            raise TransitionRefused(f"{event} of group {group_id}, which is {state}: {found}")
        return found

    def _move(self, group_id: GroupId, event: Event, **changes: object) -> Group:
        target = self._resolve(group_id, event)[0]
        return self._enter(msgspec.structs.replace(self._groups[group_id], **changes), target)

    def _enter(self, group: Group, state: GroupState) -> Group:
        held = group.holds_permit
        group = msgspec.structs.replace(group, state=state)
        self._groups[group.id] = group
        if held and not group.holds_permit:
            self.permits.release(group.id)
        return group

    def _settle(self, group: Group) -> Group:
        del self._groups[group.id]
        self._released.extend(receipt.key for receipt in group.receipts())
        if group.state is GroupState.TRAINED:
            self._trained += 1
        else:
            reason = str(group.dropped)
            self._dropped[reason] = self._dropped.get(reason, 0) + 1
        return group

    def _replace_sibling(self, group: Group, sibling: Sibling) -> None:
        siblings = list(group.siblings)
        siblings[sibling.index] = sibling
        self._groups[group.id] = msgspec.structs.replace(group, siblings=tuple(siblings))

    def _current(self, key: AttemptKey) -> Sibling | None:
        """The sibling whose current attempt is `key`, if there is one (S3)."""
        group = self._groups.get(key.group)
        if group is None or key.sibling >= len(group.siblings):
            return None
        sibling = group.siblings[key.sibling]
        return sibling if sibling.attempt.key == key else None

    def _start_over(self, group_id: GroupId) -> None:
        group = self._groups[group_id]
        for sibling in group.siblings:
            if sibling.receipt is not None:
                self._released.append(sibling.receipt.key)
        siblings = tuple(
            sibling
            if sibling.attempt.state is AttemptState.FAILED
            else msgspec.structs.replace(self._superseded(sibling), receipt=None)
            for sibling in group.siblings
        )
        self._groups[group_id] = msgspec.structs.replace(group, siblings=siblings)

    def _superseded(self, sibling: Sibling) -> Sibling:
        attempt = msgspec.structs.replace(sibling.attempt, state=AttemptState.SUPERSEDED)
        return msgspec.structs.replace(sibling, attempt=attempt)

    def _reopened(self, sibling: Sibling, *, abrupt: bool) -> Sibling:
        if sibling.attempt.state not in (AttemptState.RESERVED, AttemptState.DISPATCHED):
            return sibling
        ends = sibling.abrupt_ends
        if abrupt and sibling.attempt.state is AttemptState.DISPATCHED:
            ends += 1
        suspected = ends >= ABRUPT_ENDS_MAX
        return msgspec.structs.replace(
            self._superseded(sibling),
            abrupt_ends=0 if suspected else ends,
            data_failures=sibling.data_failures + suspected,
        )

    def _reserve(self, group: GroupId, index: int, *, version: TrainerVersion) -> Sibling:
        slot = SiblingIndex(index)
        key = AttemptKey(group=group, sibling=slot, incarnation=self.incarnation, n=0)
        return Sibling(
            index=slot,
            attempt=Attempt(key=key, state=AttemptState.RESERVED, version=version),
            receipt=None,
            infrastructure_failures=0,
            data_failures=0,
            abrupt_ends=0,
        )

    def _following(self, last: Attempt) -> AttemptKey:
        if last.state is AttemptState.RESERVED and last.key.incarnation == self.incarnation:
            return last.key
        again = last.key.incarnation == self.incarnation
        return msgspec.structs.replace(
            last.key, incarnation=self.incarnation, n=last.key.n + 1 if again else 0
        )
