"""The ledger beyond its table: attempts, duplicates, budgets, levels, restarts (S3, S5)."""

from __future__ import annotations

import msgspec
import pytest

from outlast.errors import InvariantError, TransitionRefused
from outlast.model.groups import AttemptState, FailureKind, GroupState, RecoveryLevel
from outlast.model.ids import TrainerVersion
from outlast.model.ledger import Ledger, Verdict
from outlast.model.permits import Permits
from tests.model.toy import G0, ONE, TWO, V0, admit, bring, ledger, receipt, seal_all, slot


def _reincarnated(book: Ledger, *, abrupt: bool = True, capacity: int = 4) -> Ledger:
    """What a restart makes of the ledger's image."""
    later = Ledger(
        incarnation=TWO,
        permits=Permits(capacity),
        groups=book.image(),
        settled=book.settled,
    )
    for group in book.image():
        later.reopen(group.id, anchor_step=0, abrupt=abrupt)
    return later


def test_s3_identical_duplicate_is_a_no_op_and_a_different_one_an_error() -> None:
    book = ledger()
    admit(book)
    key = book.dispatch(G0, slot(0), version=V0)
    assert book.seal(receipt(key)) is Verdict.ACCEPTED
    image = book.image()
    assert book.seal(receipt(key)) is Verdict.DUPLICATE
    assert book.image() == image
    with pytest.raises(InvariantError, match="two different results"):
        book.seal(receipt(key, reward=0.0))


def test_s3_results_of_failed_superseded_and_foreign_attempts_are_stale() -> None:
    book = ledger()
    admit(book)
    first = book.dispatch(G0, slot(0), version=V0)
    assert book.fail(first, FailureKind.INFRASTRUCTURE) is Verdict.ACCEPTED
    assert book.seal(receipt(first)) is Verdict.STALE
    assert book.fail(first, FailureKind.INFRASTRUCTURE) is Verdict.STALE
    second = book.dispatch(G0, slot(0), version=V0)
    assert (second.n, second.incarnation) == (first.n + 1, ONE)
    book.supersede(G0, slot(0))
    assert book.seal(receipt(second)) is Verdict.STALE
    later = _reincarnated(book)
    third = later.dispatch(G0, slot(0), version=V0)
    assert (third.n, third.incarnation) == (0, TWO)
    assert later.seal(receipt(second)) is Verdict.STALE
    assert later.seal(receipt(third)) is Verdict.ACCEPTED


def test_an_attempt_in_flight_is_not_dispatched_again() -> None:
    book = ledger()
    admit(book)
    book.dispatch(G0, slot(0), version=V0)
    with pytest.raises(TransitionRefused, match="dispatched"):
        book.dispatch(G0, slot(0), version=V0)


def test_version_is_restamped_at_redispatch_and_kept_by_sealed_tokens() -> None:
    book = ledger()
    admit(book)
    key = book.dispatch(G0, slot(0), version=TrainerVersion(1))
    book.seal(receipt(key, version=1))
    assert book.groups[G0].version == 0  # the other sibling is still reserved under version 0
    book.dispatch(G0, slot(1), version=TrainerVersion(3))
    assert book.groups[G0].version == 1
    book.supersede(G0, slot(1))
    book.dispatch(G0, slot(1), version=TrainerVersion(4))
    assert book.groups[G0].version == 1


def test_level_sibling_keeps_finished_siblings_through_a_restart() -> None:
    book = ledger()
    admit(book, siblings=3)
    key = book.dispatch(G0, slot(1), version=V0)
    book.seal(receipt(key))
    book.dispatch(G0, slot(2), version=V0)
    later = _reincarnated(book)
    states = [s.attempt.state for s in later.groups[G0].siblings]
    assert states == [AttemptState.SUPERSEDED, AttemptState.SEALED, AttemptState.SUPERSEDED]
    assert later.groups[G0].receipts() == (receipt(key),)
    assert later.take_released() == ()


def test_level_prompt_group_loses_all_siblings_of_an_incomplete_group_only() -> None:
    book = ledger()
    admit(book, 0, level=RecoveryLevel.PROMPT_GROUP)
    admit(book, 1, level=RecoveryLevel.PROMPT_GROUP)
    key = book.dispatch(G0, slot(0), version=V0)
    book.seal(receipt(key))
    whole = admit(book, 2, level=RecoveryLevel.PROMPT_GROUP)
    seal_all(book, whole.id)
    later = _reincarnated(book)
    assert later.groups[G0].receipts() == ()
    assert later.take_released() == (key,)
    assert later.groups[whole.id].all_sealed


def test_level_prompt_group_starts_over_at_a_live_failure() -> None:
    book = ledger()
    admit(book, level=RecoveryLevel.PROMPT_GROUP)
    sealed = book.dispatch(G0, slot(0), version=V0)
    book.seal(receipt(sealed))
    failing = book.dispatch(G0, slot(1), version=V0)
    book.fail(failing, FailureKind.DATA)
    group = book.groups[G0]
    assert group.receipts() == ()
    assert [s.attempt.state for s in group.siblings] == [
        AttemptState.SUPERSEDED,
        AttemptState.FAILED,
    ]
    assert group.siblings[1].data_failures == 1
    assert book.take_released() == (sealed,)


def test_three_abrupt_ends_in_flight_count_as_one_data_failure() -> None:
    book = ledger()
    admit(book)
    for life in range(3):
        book.dispatch(G0, slot(0), version=V0)
        expected = 0 if life < 2 else 1
        book = _reincarnated(book)
        assert book.groups[G0].siblings[0].data_failures == expected
    assert book.groups[G0].siblings[0].abrupt_ends == 0


def test_orderly_ends_and_unsent_attempts_never_count_as_abrupt() -> None:
    book = ledger()
    admit(book)
    for _ in range(4):
        book.dispatch(G0, slot(0), version=V0)
        book = _reincarnated(book, abrupt=False)
    siblings = book.groups[G0].siblings
    assert [s.abrupt_ends for s in siblings] == [0, 0]
    assert [s.data_failures for s in siblings] == [0, 0]


def test_claimed_groups_come_back_to_their_old_place() -> None:
    book = ledger()
    bring(book, GroupState.CLAIMED)
    later = _reincarnated(book)
    group = later.groups[G0]
    assert (group.state, group.step, group.position) == (GroupState.BUFFERED, None, 0)
    assert later.permits.held == 1


def test_s5_restored_groups_get_permits_beyond_a_lowered_capacity() -> None:
    book = ledger(capacity=3)
    for group in range(3):
        admit(book, group)
    later = _reincarnated(book, capacity=1)
    assert later.permits.free == -2


def test_settled_groups_release_their_rows() -> None:
    book = ledger()
    bring(book, GroupState.APPLIED)
    keys = tuple(r.key for r in book.groups[G0].receipts())
    assert book.take_released() == ()
    book.durable(G0)
    assert book.has_released
    assert book.take_released() == keys
    assert book.settled.trained == 1


def test_records_refuse_unknown_fields() -> None:
    """S10 at the level of a single record."""
    book = ledger()
    group = admit(book)
    data = msgspec.json.decode(msgspec.json.encode(group))
    data["siblings"][0]["phase"] = "weird"
    with pytest.raises(msgspec.ValidationError, match="phase"):
        msgspec.json.decode(msgspec.json.encode(data), type=type(group))
    data["siblings"][0].pop("phase")
    data["state"] = "weird"
    with pytest.raises(msgspec.ValidationError, match="weird"):
        msgspec.json.decode(msgspec.json.encode(data), type=type(group))
