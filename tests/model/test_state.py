"""The recovery state: sections that move ledger, cursor, counters and journal together."""

from __future__ import annotations

import pytest

from outlast.errors import InvariantError, NotRestorable, StallAbort
from outlast.model.cut import Anchor, AnchorKind, Cut, check_cut, covered
from outlast.model.duties import Duties
from outlast.model.groups import DropReason, FailureKind, GroupState
from outlast.model.history import extend_history
from outlast.model.ids import GroupId, Step, TrainerVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.journal import Applied, Dropped
from outlast.model.sampler_base import Sampler
from outlast.model.sampler_kinds import InOrder, ReadyFirst, Windowed
from outlast.model.state import RecoveryState
from tests.model.toy import TWO, V0, ListJournal, fill, run_state, slot, train


def in_order(lookahead: int = 1) -> Sampler:
    return InOrder(prompts_per_step=2, lookahead=lookahead)


def bootstrap(state: RecoveryState) -> Anchor:
    return Anchor(kind=AnchorKind.BOOTSTRAP, version=V0, history="0" * 64)


def cut_of(state: RecoveryState) -> Cut:
    cut = state.cut(sequence=CutSequence(1), parent=None, anchor=bootstrap(state))
    check_cut(cut, state.order)
    return cut


def restart(state: RecoveryState, cut: Cut, *, anchor: Anchor | None = None) -> RecoveryState:
    restored = RecoveryState.restored(
        state.plan,
        sampler=state.sampler,
        journal=ListJournal(),
        incarnation=TWO,
        cut=cut,
        anchor=anchor or cut.anchor,
        abrupt=True,
    )
    restored.check()
    return restored


def test_in_order_admits_whole_batches_up_to_the_lookahead() -> None:
    state, _ = run_state(in_order())
    first = state.admit(V0)
    second = state.admit(V0)
    assert [g.id for g in first + second] == [0, 1, 2, 3]
    assert [g.target_step for g in first + second] == [1, 1, 2, 2]
    assert state.admissible(V0) == 0
    assert state.admissible(TrainerVersion(1)) == 2
    with pytest.raises(InvariantError, match="nothing is admissible"):
        state.admit(V0)


def test_a_batch_waits_for_permits_of_the_whole_batch() -> None:
    state, _ = run_state(in_order(), capacity=3)
    state.admit(V0)
    assert state.ledger.permits.free == 1
    assert state.admissible(V0) == 0


def test_s1_a_step_moves_version_history_journal_and_permits_at_once() -> None:
    state, journal = run_state(in_order())
    groups = state.admit(V0)
    fill(state, groups)
    free = state.ledger.permits.free
    trained = train(state, 2)
    assert state.version == 1
    assert state.ledger.permits.free == free + 2
    assert [g.state for g in state.ledger.groups.values()] == [GroupState.APPLIED] * 2
    rows = tuple(r.digest for g in groups for r in state.ledger.groups[g.id].receipts())
    expected = extend_history("0" * 64, step=Step(1), groups=trained, rows=rows)
    assert state.history == expected
    (record,) = journal.records
    assert isinstance(record, Applied)
    assert (record.step, record.groups, record.history) == (1, trained, expected)
    assert record.refs == tuple(g.prompt for g in groups)


def test_s1_apply_refuses_groups_of_another_step() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    state.claim(state.select(at_least=2, at_most=2), Step(7))
    with pytest.raises(InvariantError, match=r"step 1 finishes over groups claimed for \[7\]"):
        state.apply([GroupId(0), GroupId(1)], chunks=[2], outcome={})


def test_claimed_groups_of_an_unfinished_step_come_back_once() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    state.claim(state.select(at_least=2, at_most=2), Step(1))
    restored = restart(state, cut_of(state))
    assert restored.select(at_least=2, at_most=2) == (0, 1)
    assert train(restored, 2) == (0, 1)


def test_steps_that_the_restored_trainer_covers_are_never_repeated() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    train(state, 2)
    cut = covered(cut_of(state))
    check_cut(cut, state.order)
    restored = restart(state, cut)
    assert (restored.version, restored.history) == (1, state.history)
    assert dict(restored.ledger.groups) == {}
    assert restored.ledger.settled.trained == 2


def test_steps_above_the_restored_trainer_wait_for_replay() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    train(state, 2)
    restored = restart(state, cut_of(state), anchor=bootstrap(state))
    assert restored.version == 0
    assert restored.history == "0" * 64
    assert {g.state for g in restored.ledger.groups.values()} == {GroupState.REPLAY}
    assert restored.ledger.permits.held == 0
    assert [r.step for r in restored.steps.to_replay] == [1]
    check_cut(cut_of(restored), restored.order)


def test_s1_a_replayed_step_reaches_the_same_history_and_is_not_counted_twice() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    fill(state, state.admit(V0))
    train(state, 2)
    train(state, 2)
    restored = restart(state, cut_of(state), anchor=bootstrap(state))
    with pytest.raises(InvariantError, match="2 steps still to replay"):
        restored.steps.finish([], chunks=[], outcome={})
    first = restored.replay({"loss": 0.5})
    half = cut_of(restored)
    assert (first.step, [r.step for r in half.applied_steps]) == (1, [1, 2])
    again = restart(restored, half)
    assert [r.step for r in again.steps.to_replay] == [1, 2]
    restored.replay({"loss": 0.5})
    assert (restored.version, restored.history) == (state.version, state.history)
    assert restored.ledger.settled.trained == 0
    restored.durable(TrainerVersion(2))
    assert restored.ledger.settled.trained == 4
    journal = restored._journal
    assert isinstance(journal, ListJournal)
    assert [type(r).__name__ for r in journal.records] == ["Replayed", "Replayed"]


def test_a_bundled_cut_taken_during_replay_keeps_what_is_still_to_replay() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    fill(state, state.admit(V0))
    train(state, 2)
    train(state, 2)
    restored = restart(state, cut_of(state), anchor=bootstrap(state))
    restored.replay({})
    bundled = covered(cut_of(restored))
    check_cut(bundled, restored.order)
    later = restart(restored, bundled)
    assert later.version == 1
    assert [r.step for r in later.steps.to_replay] == [2]


def test_durable_settles_the_steps_it_covers_and_only_those() -> None:
    state, _ = run_state(in_order())
    fill(state, state.admit(V0))
    fill(state, state.admit(V0))
    train(state, 2)
    train(state, 2)
    state.durable(TrainerVersion(1))
    assert state.ledger.settled.trained == 2
    assert {g.step for g in state.ledger.groups.values()} == {2}
    state.check()


def test_shrink_reduces_the_step_and_refuses_below_the_minimum() -> None:
    state, journal = run_state(in_order(), prompts_per_step=2, min_step_batch_fraction=0.5)
    state.admit(V0)
    state.give_up(GroupId(0))
    assert state.wanted(Step(1)) == 1
    assert isinstance(journal.records[-1], Dropped)
    assert cut_of(state).shortfalls == {"1": 1}
    with pytest.raises(StallAbort, match="step 1 would shrink to 0 of 2"):
        state.give_up(GroupId(1))


def test_replace_owes_the_step_a_later_draw_across_a_restart() -> None:
    state, _ = run_state(in_order(0), replace_dropped=True)
    state.admit(V0)
    assert state.admissible(V0) == 0
    state.give_up(GroupId(0))
    restored = restart(state, cut_of(state))
    assert restored.admissible(V0) == 1
    (replacement,) = restored.admit(V0)
    assert (replacement.id, replacement.target_step) == (2, 1)
    assert restored.admissible(V0) == 0
    assert restored.wanted(Step(1)) == 2


def test_a_finished_group_of_the_latest_step_stands_in_and_its_own_is_owed() -> None:
    """The step that trains next need not wait for a whole generation (DESIGN 5)."""
    state, _ = run_state(in_order(2), replace_dropped=True, size=7)
    for _ in range(3):
        state.admit(V0)  # targets 1 1, 2 2, 3 3
    fill(state, [state.ledger.groups[GroupId(i)] for i in (1, 3, 4, 5)])
    assert state.give_up(GroupId(0)) == GroupId(4)  # the older of step 3
    assert state.ledger.groups[GroupId(4)].target_step == 1
    restored = restart(state, cut_of(state))
    assert restored.ledger.groups[GroupId(4)].target_step == 1
    assert set(restored.select(at_least=2, at_most=2)) == {GroupId(1), GroupId(4)}
    (replacement,) = restored.admit(V0)
    assert (replacement.id, replacement.target_step) == (6, 3)
    assert restored.drained
    assert restored.give_up(GroupId(2)) is None  # nothing is left to draw: nothing is lent


def test_nothing_is_lent_where_a_dropped_prompt_shrinks_its_step() -> None:
    state, _ = run_state(in_order(1), min_step_batch_fraction=0.5)
    for _ in range(2):
        state.admit(V0)
    fill(state, [state.ledger.groups[GroupId(i)] for i in (1, 2, 3)])
    assert state.give_up(GroupId(0)) is None
    assert state.ledger.groups[GroupId(2)].target_step == 2
    assert state.wanted(Step(1)) == 1


def test_a_filtered_group_gives_its_admission_back() -> None:
    state, _ = run_state(ReadyFirst(prompts_per_step=2, max_staleness=0))
    for _ in range(2):
        state.admit(V0)
    assert state.admissible(V0) == 0
    fill(state, [state.ledger.groups[GroupId(1)]])
    group = state.ledger.groups[GroupId(0)]
    for sibling in group.siblings:
        key = state.dispatch(group.id, sibling.index, version=V0)
        from tests.model.toy import receipt

        state.seal(receipt(key))
    state.complete(group.id)
    state.filter(group.id)
    assert state.admissible(V0) == 1


def test_run_budgets_end_the_run_with_the_numbers() -> None:
    state, _ = run_state(
        ReadyFirst(prompts_per_step=2, max_staleness=3), max_skipped_prompts=1, size=20
    )
    for _ in range(3):
        state.admit(V0)
    state.give_up(GroupId(0))
    with pytest.raises(StallAbort, match=r"max_skipped_prompts \(1\)"):
        state.give_up(GroupId(1))


def test_a_commit_resets_the_streak_of_given_up_prompts() -> None:
    state, _ = run_state(
        ReadyFirst(prompts_per_step=2, max_staleness=3), max_consecutive_dropped_prompts=1
    )
    groups = [state.admit(V0)[0] for _ in range(4)]
    state.give_up(groups[0].id)
    fill(state, [groups[1]])
    state.give_up(groups[2].id)
    with pytest.raises(StallAbort, match="in a row"):
        state.give_up(groups[3].id)


def test_budgets_are_told_apart() -> None:
    state, _ = run_state(in_order())
    state.admit(V0)
    for _ in range(2):
        key = state.dispatch(GroupId(0), slot(0), version=V0)
        state.fail(key, FailureKind.DATA)
    assert state.exhausted_budget(GroupId(0)) is FailureKind.DATA
    for _ in range(5):
        key = state.dispatch(GroupId(1), slot(0), version=V0)
        state.fail(key, FailureKind.INFRASTRUCTURE)
    assert state.exhausted_budget(GroupId(1)) is FailureKind.INFRASTRUCTURE


def test_stale_groups_are_evicted_and_aborted_with_their_credit() -> None:
    sampler = Windowed(
        prompts_per_step=1, max_staleness=0, over_sampling_ratio=3.0, freshest_first=False
    )
    state, journal = run_state(sampler, prompts_per_step=1)
    first, second, third = (state.admit(V0)[0] for _ in range(3))
    fill(state, [first, second])
    assert not state.has_stale()
    train(state, 1)
    assert state.has_stale()
    assert set(state.evict_stale()) == {second.id, third.id}
    dropped = [r for r in journal.records if isinstance(r, Dropped)]
    assert {r.reason for r in dropped} == {DropReason.STALE}
    state.check()


def test_the_end_of_the_data_trains_one_short_step_or_drops_the_remainder() -> None:
    state, _ = run_state(in_order(2), size=3, prompts_per_step=2, min_step_batch_fraction=0.5)
    fill(state, state.admit(V0))
    (last,) = state.admit(V0)
    assert state.drained
    assert state.wanted(Step(2)) == 1
    assert state.end_of_data() == 0  # the remainder is still open
    fill(state, [last])
    train(state, 2)
    assert state.end_of_data() == 0  # one group is half a step: enough here
    train(state, 1)
    strict, journal = run_state(in_order(2), size=3, prompts_per_step=2)
    fill(strict, strict.admit(V0))
    fill(strict, strict.admit(V0))
    train(strict, 2)
    assert strict.end_of_data() == 1
    assert journal.records[-1].reason is DropReason.END_OF_DATA  # type: ignore[union-attr]


def test_draws_span_epochs_and_every_index_comes_once_per_epoch() -> None:
    state, _ = run_state(
        ReadyFirst(prompts_per_step=2, max_staleness=20), size=5, epochs=2, capacity=10
    )
    groups = [state.admit(V0)[0] for _ in range(10)]
    assert state.drained
    for epoch in range(2):
        indices = [g.prompt.index for g in groups if g.prompt.epoch == epoch]
        assert sorted(indices) == list(range(5))


def test_duties_and_metrics_survive_a_restart() -> None:
    state, _ = run_state(in_order())
    state.done("val", TrainerVersion(0), reward=0.25)
    restored = restart(state, cut_of(state))
    assert restored.duties.last_done("val") == 0
    assert restored.duties.last_done("never") is None
    assert restored.duties.metrics == {"0": {"val:reward": 0.25}}


def test_a_restored_stamp_of_a_finished_step_is_refused() -> None:
    state, _ = run_state(in_order())
    state.admit(V0)
    cut = cut_of(state)
    later = Anchor(kind=AnchorKind.CHECKPOINT, version=TrainerVersion(4), history="1" * 64)
    with pytest.raises(NotRestorable, match="that step is over"):
        restart(state, cut, anchor=later)


def test_check_sees_a_lost_group() -> None:
    """S4 and S5 would notice what no public method can do."""
    state, _ = run_state(in_order())
    state.admit(V0)
    del state.ledger._groups[GroupId(0)]
    with pytest.raises(InvariantError, match="S5"):
        state.check()


def test_abrupt_ends_blame_nobody_while_many_are_in_flight() -> None:
    """Kills of a preemptible machine are not the fault of the prompts that happened to run."""
    for siblings, blamed in ((2, 1), (9, 0)):
        state, _ = run_state(in_order(), siblings=siblings)
        (group, _) = state.admit(V0)
        for _ in range(3):
            for index in range(siblings):
                state.dispatch(group.id, slot(index), version=V0)
            state = restart(state, cut_of(state))
        assert state.ledger.groups[group.id].siblings[0].data_failures == blamed


def test_metrics_of_checkpoints_that_are_gone_are_forgotten() -> None:
    """A run of any length carries as many metrics as it keeps checkpoints, and the newest."""
    duties = Duties()
    for version in range(8):
        duties.record(TrainerVersion(version), "val:reward", value=version / 8)
    duties.keep(frozenset())
    assert len(duties.metrics) == 8  # nothing is durable yet: any of them may be asked for
    duties.keep(frozenset(map(TrainerVersion, (2, 5, 6))))
    assert set(duties.metrics) == {"0", "2", "5", "6", "7"}
    duties.keep(frozenset(map(TrainerVersion, (2, 6, 9))))
    assert set(duties.metrics) == {"0", "2", "6"}
