"""A small run for model tests: a ledger and a state in any group state, without disk or asyncio."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from outlast.model.cut import LogPosition
from outlast.model.groups import (
    DrawnPrompt,
    DropReason,
    Group,
    GroupState,
    PromptRef,
    Receipt,
    RecoveryLevel,
)
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    SiblingIndex,
    Step,
    TrainerVersion,
)
from outlast.model.journal import JournalRecord
from outlast.model.ledger import Ledger, Verdict
from outlast.model.permits import Permits
from outlast.model.plan import RunPlan
from outlast.model.sampler_base import Sampler
from outlast.model.state import RecoveryState
from outlast.model.table import Event

ONE = Incarnation(1)
TWO = Incarnation(2)
G0 = GroupId(0)
V0 = TrainerVersion(0)


@dataclass
class ListJournal:
    """A journal that only remembers."""

    records: list[JournalRecord] = field(default_factory=list)

    @property
    def position(self) -> LogPosition:
        return LogPosition(incarnation=ONE, length=len(self.records), digest="00")

    def append(self, record: JournalRecord, /) -> None:
        self.records.append(record)


def receipt(key: AttemptKey, *, reward: float = 1.0, version: int = 0, tokens: int = 3) -> Receipt:
    return Receipt(
        key=key,
        digest=f"{key.group:02x}{key.sibling:02x}" * 16,
        reward=reward,
        prompt_tokens=2,
        response_tokens=tokens,
        min_version=TrainerVersion(version),
        max_version=TrainerVersion(version),
        truncated=False,
        mask_sample=False,
    )


def ledger(*, capacity: int = 4, incarnation: Incarnation = ONE) -> Ledger:
    return Ledger(incarnation=incarnation, permits=Permits(capacity))


def admit(
    book: Ledger,
    group: int = 0,
    *,
    siblings: int = 2,
    level: RecoveryLevel = RecoveryLevel.SIBLING,
    target: int | None = None,
) -> Group:
    drawn = DrawnPrompt(id=GroupId(group), prompt=PromptRef(dataset="toy", epoch=0, index=group))
    stamp = None if target is None else Step(target)
    return book.admit(drawn, siblings=siblings, level=level, version=V0, target=stamp)


def seal_all(book: Ledger | RecoveryState, group: GroupId = G0, *, version: int = 0) -> None:
    held = book.ledger if isinstance(book, RecoveryState) else book
    for sibling in held.groups[group].siblings:
        if not sibling.sealed:
            key = book.dispatch(group, sibling.index, version=TrainerVersion(version))
            assert book.seal(receipt(key, version=version)) is Verdict.ACCEPTED


def bring(book: Ledger, state: GroupState | None) -> None:
    """Drive group 0 of an empty ledger into `state`; None leaves it unknown."""
    if state is None:
        return
    admit(book)
    if state is GroupState.OPEN:
        return
    if state is GroupState.DROPPED:
        book.drop(G0, Event.GIVE_UP, reason=DropReason.GAVE_UP)
        return
    seal_all(book)
    book.complete(G0)
    if state is GroupState.COMPLETE:
        return
    book.commit(G0, rewards=(1.0, 1.0), keep=(True, True), position=0)
    if state is GroupState.BUFFERED:
        return
    book.claim(G0, Step(1))
    if state is GroupState.CLAIMED:
        return
    book.apply(G0)
    if state is GroupState.REPLAY:
        book.reopen(G0, anchor_step=0, abrupt=True)
    elif state is GroupState.TRAINED:
        book.durable(G0)


def run_state(
    sampler: Sampler,
    *,
    prompts_per_step: int = 2,
    siblings: int = 2,
    capacity: int = 8,
    size: int = 10,
    epochs: int = 1,
    **plan: object,
) -> tuple[RecoveryState, ListJournal]:
    journal = ListJournal()
    settings = RunPlan(
        prompts_per_step=prompts_per_step,
        siblings=siblings,
        capacity=capacity,
        level=lambda _: RecoveryLevel.SIBLING,
        dataset="toy",
        dataset_size=size,
        seed=0,
        epochs=epochs,
        **plan,  # type: ignore[arg-type]
    )
    return RecoveryState(settings, sampler=sampler, journal=journal, incarnation=ONE), journal


def fill(state: RecoveryState, groups: Iterable[Group]) -> None:
    """Generate, complete and commit `groups`."""
    for group in groups:
        seal_all(state, group.id, version=state.version)
        state.complete(group.id)
        width = len(group.siblings)
        state.commit(group.id, rewards=(1.0,) * width, keep=(True,) * width)


def train(state: RecoveryState, count: int) -> tuple[GroupId, ...]:
    """One whole step over `count` groups."""
    picked = state.select(at_least=count, at_most=count)
    assert picked
    state.claim(picked, Step(state.version + 1))
    state.apply(picked, chunks=[len(picked)], outcome={"loss": 0.5})
    return picked


def slot(index: int) -> SiblingIndex:
    return SiblingIndex(index)
