"""What a restart makes of stale groups, shortfalls and recovery levels; and aliasing of a cut."""

from __future__ import annotations

import dataclasses
import random

import msgspec
import pytest

from outlast.errors import OutlastError, StallAbort
from outlast.model.cut import Anchor, AnchorKind, Cut, check_cut
from outlast.model.groups import DropReason, FailureKind, GroupState, RecoveryLevel
from outlast.model.ids import GroupId, Step, TrainerVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.journal import Dropped
from outlast.model.sampler_base import Sampler
from outlast.model.sampler_kinds import InOrder, ReadyFirst, Windowed
from outlast.model.state import RecoveryState
from tests.model.toy import TWO, V0, ListJournal, fill, receipt, run_state, train

BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=V0, history="0" * 64)


def cut_of(state: RecoveryState) -> Cut:
    cut = state.cut(sequence=CutSequence(1), parent=None, anchor=BOOTSTRAP)
    check_cut(cut, state.order)
    return cut


def restart(
    state: RecoveryState, *, cut: Cut | None = None, level: RecoveryLevel | None = None
) -> tuple[RecoveryState, ListJournal]:
    """The state a new life makes of `cut`; with `level`, under another recipe."""
    cut, journal, plan = cut or cut_of(state), ListJournal(), state.plan
    if level is not None:
        plan = dataclasses.replace(plan, level=lambda _: level)
    restored = RecoveryState.restored(
        plan,
        sampler=state.sampler,
        journal=journal,
        incarnation=TWO,
        cut=cut,
        anchor=cut.anchor,
        abrupt=True,
    )
    restored.check()
    return restored, journal


def test_a_stale_group_is_restored_and_then_evicted_with_its_credit_and_record() -> None:
    """Dropping it while loading would leave counters and permits behind."""
    sampler = Windowed(prompts_per_step=1, max_staleness=0, over_sampling_ratio=3.0)
    state, _ = run_state(sampler, prompts_per_step=1)
    groups = [state.admit(V0)[0] for _ in range(3)]
    fill(state, groups[:2])
    train(state, 1)
    anchor = Anchor(kind=AnchorKind.CHECKPOINT, version=TrainerVersion(1), history=state.history)
    state.durable(TrainerVersion(1))
    cut = state.cut(sequence=CutSequence(1), parent=None, anchor=anchor)
    restored, journal = restart(state, cut=cut)
    assert {g.id for g in restored.ledger.groups.values()} == {1, 2}
    assert restored.ledger.permits.held == 2
    assert set(restored.evict_stale()) == {1, 2}
    dropped = [r for r in journal.records if isinstance(r, Dropped)]
    assert [r.reason for r in dropped] == [DropReason.STALE] * 2
    assert restored.ledger.permits.held == 0
    restored.check()


def test_a_shrunken_step_stays_shrunken() -> None:
    state, _ = run_state(InOrder(prompts_per_step=2, lookahead=1), min_step_batch_fraction=0.5)
    (first, second) = state.admit(V0)
    state.give_up(first.id)
    fill(state, [second])
    restored, _ = restart(state)
    assert restored.wanted(Step(1)) == 1, "it must not wait for what was given up"
    assert restored.select(at_least=1, at_most=1) == (second.id,)


def test_run_budgets_go_on_counting() -> None:
    state, _ = run_state(
        ReadyFirst(prompts_per_step=2, max_staleness=3), max_skipped_prompts=2, size=20
    )
    groups = [state.admit(V0)[0] for _ in range(3)]
    state.give_up(groups[0].id)
    state.give_up(groups[1].id)
    restored, _ = restart(state)
    with pytest.raises(StallAbort, match=r"max_skipped_prompts \(2\)"):
        restored.give_up(groups[2].id)


@pytest.mark.parametrize("old", list(RecoveryLevel))
@pytest.mark.parametrize("new", list(RecoveryLevel))
def test_a_group_keeps_the_level_it_was_drawn_with(old: RecoveryLevel, new: RecoveryLevel) -> None:
    """A restart under another recipe does not reinterpret what was half done."""
    state, _ = run_state(ReadyFirst(prompts_per_step=2, max_staleness=3))
    state.plan = dataclasses.replace(state.plan, level=lambda _: old)
    (group,) = state.admit(V0)
    key = state.dispatch(group.id, group.siblings[0].index, version=V0)
    state.seal(receipt(key))
    restored, _ = restart(state, level=new)
    assert restored.ledger.groups[group.id].level is old
    kept = len(restored.ledger.groups[group.id].receipts())
    assert kept == (0 if old is RecoveryLevel.PROMPT_GROUP else 1)
    (later,) = restored.admit(V0)
    assert later.level is new


def _image(state: RecoveryState) -> bytes:
    """A cut without what only names it, as bytes."""
    cut = state.cut(sequence=CutSequence(1), parent=None, anchor=BOOTSTRAP)
    return msgspec.json.encode(msgspec.structs.replace(cut, tokens_per_s=0.0))


def _event(state: RecoveryState, rng: random.Random) -> None:
    """One random call of the state's public methods, allowed or not."""
    groups = list(state.ledger.groups.values())
    group = rng.choice(groups).id if groups else GroupId(0)
    match rng.randrange(12):
        case 0 | 1:
            state.admit(state.version)
        case 2 | 3 | 4:
            slot = rng.choice(state.ledger.groups[group].siblings)
            if rng.random() < 0.5:
                state.dispatch(group, slot.index, version=state.version)
            else:
                state.seal(receipt(slot.attempt.key, version=state.version))
        case 5:
            slot = rng.choice(state.ledger.groups[group].siblings)
            state.fail(slot.attempt.key, rng.choice(list(FailureKind)))
        case 6:
            state.complete(group)
        case 7:
            state.commit(group, rewards=(1.0, 0.0), keep=(True, True))
        case 8:
            if picked := state.select(at_least=1, at_most=2):
                state.claim(picked, Step(state.version + 1))
        case 9:
            claimed = [g.id for g in groups if g.state is GroupState.CLAIMED]
            if rng.random() < 0.7:
                state.apply(claimed, chunks=[len(claimed)], outcome={"loss": 0.5})
            else:
                state.unclaim(claimed or [group])
        case 10:
            rng.choice((state.give_up, state.filter))(group)
        case _:
            state.evict_stale()
            state.done("val", state.version, reward=rng.random())


SAMPLERS: list[Sampler] = [
    ReadyFirst(prompts_per_step=2, max_staleness=3),
    Windowed(prompts_per_step=2, max_staleness=1, over_sampling_ratio=2.0),
    InOrder(prompts_per_step=2, lookahead=1),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: sampler.name)
def test_whatever_a_cut_would_show_moves_the_mutation_counter(sampler: Sampler) -> None:
    """A snapshot is skipped when the counter stands still: it must not, even after a refusal.

    And a cut is an image: nothing that happens afterwards shows in it.
    """
    changed = refused = 0
    for seed in range(40):
        rng = random.Random(seed)
        state, _ = run_state(sampler, size=200, capacity=12, max_skipped_prompts=10_000)
        for _ in range(60):
            cut = state.cut(sequence=CutSequence(1), parent=None, anchor=BOOTSTRAP)
            taken, before, count = msgspec.json.encode(cut), _image(state), state.mutations
            try:
                _event(state, rng)
            except (OutlastError, LookupError):
                refused += 1
            assert msgspec.json.encode(cut) == taken
            if _image(state) != before:
                changed += 1
                assert state.mutations > count
    assert changed > 200 and refused > 50
