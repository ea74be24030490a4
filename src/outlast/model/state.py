"""The recovery state: the one owner of everything restart-facing, and the only maker of cuts.

It composes ledger, cursor and sampler counters, and moves them together: each public method is one
synchronous section, so a cut can never see a prompt that belongs to nobody (S4) or a step that
half happened (S1). Settled prompts go to the journal in the same section. May import: `model`.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import InvariantError
from outlast.model.budgets import Budgets
from outlast.model.cursor import DatasetCursor, DatasetOrder
from outlast.model.cut import Anchor, Cut, PrefixRef, SamplerState
from outlast.model.duties import Duties
from outlast.model.groups import (
    DrawnPrompt,
    DropReason,
    FailureKind,
    Group,
    GroupState,
    Receipt,
    StepRecord,
)
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    SiblingIndex,
    Step,
    TrainerVersion,
)
from outlast.model.ids import Sequence as CutSequence
from outlast.model.journal import Applied, Dropped, Journal, Replayed
from outlast.model.ledger import SUSPECTS_MAX, Ledger, Verdict, in_flight
from outlast.model.permits import Permits
from outlast.model.plan import RunPlan
from outlast.model.promotion import later_groups, lender
from outlast.model.sampler_base import Sampler, check_restored, check_selection
from outlast.model.steps import StepBook
from outlast.model.table import Event


class RecoveryState:
    """Owner of groups, cursor, sampler counters, budgets, version and history."""

    def __init__(
        self, plan: RunPlan, *, sampler: Sampler, journal: Journal, incarnation: Incarnation
    ) -> None:
        """A run that has drawn nothing yet."""
        self.plan = plan
        self.sampler = sampler
        self.incarnation = incarnation
        self._journal = journal
        self.order = DatasetOrder(seed=plan.seed, size=plan.dataset_size)
        self._cursor = self._cursor_at(0)
        self._counters = SamplerState(name=sampler.name, admitted=0, credited=0, batches=0, own={})
        self.ledger = Ledger(incarnation=incarnation, permits=Permits(plan.capacity))
        self.steps = StepBook()
        self._reserve: list[DrawnPrompt] = []
        self._budgets = Budgets(plan)
        self._next_position = 0
        self.duties = Duties()
        self.tokens_per_s = 0.0  # only reported, so it is no mutation
        self.mutations = 0  # grows with every change that a cut would show

    @classmethod
    def restored(
        cls,
        plan: RunPlan,
        *,
        sampler: Sampler,
        journal: Journal,
        incarnation: Incarnation,
        cut: Cut,
        anchor: Anchor,
        abrupt: bool,
    ) -> RecoveryState:
        """The state of `cut`, reopened by a new incarnation onto the trainer state of `anchor`.

        Raises NotRestorable when the cut contradicts the sampler.
        """
        state = cls(plan, sampler=sampler, journal=journal, incarnation=incarnation)
        state._cursor = state._cursor_at(cut.drawn)
        state._counters = cut.sampler
        state.ledger = Ledger(
            incarnation=incarnation,
            permits=state.ledger.permits,
            groups=cut.groups,
            settled=cut.settled,
        )
        state.steps = StepBook.restored(cut, anchor)
        state._reserve = list(cut.reserve)
        state._budgets = Budgets.restored(plan, cut)
        state._next_position = cut.next_position
        state.duties, state.tokens_per_s = Duties(cut), cut.tokens_per_s
        suspect = abrupt and in_flight(cut.groups) <= SUSPECTS_MAX
        for group in cut.groups:
            state.ledger.reopen(group.id, anchor_step=anchor.version, abrupt=suspect)
        check_restored(
            sampler, state._counters, groups=state.ledger.groups, version=state.steps.top
        )
        return state

    @property
    def version(self) -> TrainerVersion:
        return self.steps.version

    @property
    def history(self) -> str:
        return self.steps.history

    def admissible(self, acknowledged: TrainerVersion) -> int:
        """Groups that `admit` would admit now; 0 while gate, permits or data say no."""
        permits = self.ledger.permits
        if self._budgets.next_owed() is not None and self._available:
            return 1 if permits.free >= 1 else 0
        count = min(self.sampler.batch_size, self._available)
        if not count or permits.free < count:
            return 0
        groups, version = self.ledger.groups, self.version
        return count * self.sampler.admits(
            self._counters, groups, version=version, acknowledged=acknowledged
        )

    def admit(self, acknowledged: TrainerVersion) -> tuple[Group, ...]:
        """Draw, stamp and own the next groups; call only while `admissible` says so."""
        count = self.admissible(acknowledged)
        if not count:
            raise InvariantError("admit while nothing is admissible")
        self.mutations += 1
        owed = self._budgets.next_owed()
        if owed is not None:  # it keeps the admission of the group it replaces
            self._budgets.pay(owed)
            return self._admit_many(1, target=owed, version=acknowledged)
        target = self.sampler.target(self._counters)
        self._counters = self.sampler.admitted(self._counters, count)
        return self._admit_many(count, target=target, version=acknowledged)

    @property
    def drained(self) -> bool:
        """No prompt is left to draw."""
        return self._available == 0

    @property
    def _available(self) -> int:
        return len(self._reserve) + self._cursor.remaining

    def _admit_many(
        self, count: int, *, target: Step | None, version: TrainerVersion
    ) -> tuple[Group, ...]:
        drawn = [
            self._reserve.pop(0) if self._reserve else self._cursor.draw() for _ in range(count)
        ]
        return tuple(
            self.ledger.admit(
                prompt,
                siblings=self.plan.siblings,
                level=self.plan.level(prompt.prompt),
                version=version,
                target=target,
            )
            for prompt in drawn
        )

    def dispatch(
        self, group: GroupId, sibling: SiblingIndex, *, version: TrainerVersion
    ) -> AttemptKey:
        """Start an attempt under the weights that are served now."""
        self.mutations += 1
        return self.ledger.dispatch(group, sibling, version=version)

    def seal(self, receipt: Receipt) -> Verdict:
        """Offer a finished row to its sibling."""
        self.mutations += 1
        return self.ledger.seal(receipt)

    def fail(self, key: AttemptKey, kind: FailureKind) -> Verdict:
        """Charge a failed attempt to its sibling's budget."""
        self.mutations += 1
        return self.ledger.fail(key, kind)

    def exhausted_budget(self, group: GroupId) -> FailureKind | None:
        """The budget that some sibling of the group has used up, if any."""
        return self.plan.exhausted(self.ledger.groups[group].siblings)

    def give_up(self, group: GroupId) -> GroupId | None:
        """Drop a prompt whose budget is used up: replace it, or shrink its step. Returns the group
        that takes its place at once. Raises StallAbort when a budget of the run is spent."""
        target = self.ledger.groups[group].target_step
        replaced = target is not None and self.plan.replace_dropped
        self._drop(group, Event.GIVE_UP, reason=DropReason.GAVE_UP, credit=not replaced)
        self._budgets.gave_up()
        if target is not None and replaced:
            return self._owe(target)
        if target is not None:
            self._budgets.shrink(target)
        return None

    def complete(self, group: GroupId) -> Group:
        """All siblings are sealed."""
        self.mutations += 1
        return self.ledger.complete(group)

    def commit(
        self, group: GroupId, *, rewards: tuple[float, ...], keep: tuple[bool, ...]
    ) -> Group:
        """The group becomes selectable, last in buffer order."""
        self.mutations += 1
        self._budgets.committed()
        position = self._next_position
        self._next_position += 1
        return self.ledger.commit(group, rewards=rewards, keep=keep, position=position)

    def filter(self, group: GroupId) -> GroupId | None:
        """Group work rejects the group; its admission is given back. Returns as `give_up` does."""
        target = self.ledger.groups[group].target_step
        self._drop(group, Event.FILTER, reason=DropReason.FILTERED, credit=target is None)
        return None if target is None else self._owe(target)

    def _owe(self, step: Step) -> GroupId | None:
        """A later draw replaces a group of `step`. A finished group of a later step stands in, if
        there is one, and the draw is for that step, which can wait longer."""
        found = lender(self.ledger.groups, step) if self._available else None
        if found is not None and found.target_step is not None:
            self.ledger.promote(found.id, step)
            step = found.target_step
        self._budgets.owe(step)
        return None if found is None else found.id

    def evict_stale(self) -> tuple[GroupId, ...]:
        """Drop what the sampler can no longer select: buffered groups, and those in flight."""
        groups, version = self.ledger.groups, self.version
        evicted, aborted = self.sampler.evict(groups, version), self.sampler.abort(groups, version)
        for group in evicted:
            self._drop(group, Event.EVICT, reason=DropReason.STALE)
        for group in aborted:
            self._drop(group, Event.ABORT, reason=DropReason.STALE)
        return (*evicted, *aborted)

    def has_stale(self) -> bool:
        """Whether `evict_stale` would drop anything."""
        groups, version = self.ledger.groups, self.version
        return bool(self.sampler.evict(groups, version) or self.sampler.abort(groups, version))

    def wanted(self, step: Step) -> int:
        """Groups that `step` trains: P, less its shortfall, less what the data no longer gives."""
        full = self._budgets.full(step)
        if not self.drained:
            return full  # once drained, what is still owed can never be drawn
        groups = self.ledger.groups.values()
        held = [g for g in groups if g.holds_permit and g.target_step in (None, step)]
        return min(full, len(held))

    def close_ranks(self, step: Step) -> None:
        """Once nothing is left to draw, fill `step` with groups stamped for later ones: what is
        still owed never comes, so those steps could not begin."""
        missing = self._budgets.full(step) - self.wanted(step)
        if missing > 0 and self.drained and self.sampler.stamps:
            for group in later_groups(self.ledger.groups, step)[:missing]:
                self.mutations += 1
                self.ledger.promote(group, step)

    def select(self, *, at_least: int, at_most: int) -> tuple[GroupId, ...]:
        """The sampler's choice among buffered groups; empty when it must wait."""
        groups, version = self.ledger.groups, self.version
        picked = self.sampler.select(groups, version, at_least=at_least, at_most=at_most)
        check_selection(
            self.sampler, groups, picked=picked, version=version, at_least=at_least, at_most=at_most
        )
        return picked

    def claim(self, groups: Sequence[GroupId], step: Step) -> tuple[Group, ...]:
        """Selection and claim are one section: no cut sees a selected group unowned."""
        self.mutations += 1
        return tuple(self.ledger.claim(group, step) for group in groups)

    def unclaim(self, groups: Sequence[GroupId]) -> None:
        """An open step was abandoned."""
        self.mutations += 1
        for group in groups:
            self.ledger.unclaim(group)

    def apply(
        self, groups: Sequence[GroupId], *, chunks: Sequence[int], outcome: dict[str, float]
    ) -> StepRecord:
        """The step over `groups`, in training order, has happened: everything moves at once."""
        self.mutations += 1
        held = [self.ledger.groups[group] for group in groups]
        record = self.steps.finish(held, chunks=chunks, outcome=outcome)
        for group in groups:
            self.ledger.apply(group)
        self._budgets.step_done(record.step)
        self._journal.append(Applied.of(record, held))
        return record

    def replay(self, outcome: dict[str, float]) -> StepRecord:
        """The oldest step to replay was executed again; it is not trained twice."""
        self.mutations += 1
        record = self.steps.replayed()
        for group in record.groups:
            self.ledger.apply(group)
        self._journal.append(Replayed(step=record.step, outcome=outcome))
        return record

    def durable(self, version: TrainerVersion) -> None:
        """A durable trainer checkpoint at `version` exists: steps up to it are trained for good."""
        self.mutations += 1
        for record in self.steps.cover(version):
            for group in record.groups:
                self.ledger.durable(group)

    def end_of_data(self) -> int:
        """Drop a remainder too small for a step that nothing more can join; returns its size."""
        groups = self.ledger.groups.values()
        open_work = any(g.state in (GroupState.OPEN, GroupState.COMPLETE) for g in groups)
        remainder = [g.id for g in groups if g.state is GroupState.BUFFERED]
        too_small = len(remainder) < self.plan.step_groups_min
        if not self.drained or open_work or not remainder or not too_small:
            return 0
        for group in remainder:
            self._drop(group, Event.EXPIRE, reason=DropReason.END_OF_DATA)
        return len(remainder)

    # ------------------------------------------------------------------------------------ cut

    def cut(
        self,
        *,
        sequence: CutSequence,
        parent: CutSequence | None,
        anchor: Anchor,
        prefixes: tuple[PrefixRef, ...] = (),
    ) -> Cut:
        """Everything at this instant: O(groups) pointer copies."""
        return Cut(
            sequence=sequence,
            incarnation=self.incarnation,
            parent=parent,
            anchor=anchor,
            trainer_version=self.version,
            history=self.history,
            log=self._journal.position,
            dataset_size=self.plan.dataset_size,
            dataset_seed=self.plan.seed,
            cursor=self._cursor.state,
            groups=self.ledger.image(),
            reserve=tuple(self._reserve),
            sampler=self._counters,
            settled=self.ledger.settled,
            prefixes=prefixes,
            applied_steps=self.steps.records,
            shortfalls=self._budgets.shortfalls,
            owed=self._budgets.owed,
            skipped_prompts=self._budgets.skipped,
            consecutive_dropped=self._budgets.consecutive,
            next_position=self._next_position,
            last_done=self.duties.done,
            tokens_per_s=self.tokens_per_s,
            metrics=self.duties.metrics,
        )

    @property
    def committed(self) -> int:
        """Groups committed along the lineage."""
        return self._next_position

    def done(self, duty: str, version: TrainerVersion, **metrics: float) -> None:
        """A periodic duty was done at `version` and gave `metrics`."""
        self.mutations += 1
        self.duties.mark_done(duty, version)
        for name, value in metrics.items():
            self.duties.record(version, f"{duty}:{name}", value=value)

    def check(self) -> None:
        """S4 and S5 in O(groups); the simulator calls it on every event."""
        groups = self.ledger.groups
        self.ledger.permits.check(g.id for g in groups.values() if g.holds_permit)
        total = len(groups) + len(self._reserve) + self.ledger.settled.total
        drawn = self._cursor.state.drawn
        if total != drawn:
            raise InvariantError(f"S4: {drawn} drawn, {total} accounted for")

    # ------------------------------------------------------------------------------ internals

    def _cursor_at(self, drawn: int) -> DatasetCursor:
        dataset, epochs = self.plan.dataset, self.plan.epochs
        return DatasetCursor(self.order, dataset=dataset, epochs=epochs, drawn=drawn)

    def _drop(
        self, group_id: GroupId, event: Event, *, reason: DropReason, credit: bool = True
    ) -> None:
        """`credit` is false when a replacement takes over the admission of the group."""
        self.mutations += 1
        group = self.ledger.drop(group_id, event, reason=reason)
        if credit:
            self._counters = self.sampler.credited(self._counters, 1)
        self._journal.append(Dropped.of(group, reason))
