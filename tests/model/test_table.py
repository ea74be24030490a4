"""Every (state, event) cell of the ledger, against a table written out by hand (S1, S3)."""

from __future__ import annotations

import pytest

from outlast.errors import TransitionRefused
from outlast.model.groups import DropReason, FailureKind, GroupState
from outlast.model.ids import Step
from outlast.model.ledger import Ledger, Verdict
from outlast.model.table import Event, Refusal, as_markdown, targets
from tests.model.toy import G0, V0, admit, bring, ledger, receipt, seal_all, slot

# rows: event; columns: - O C B K A R T D  (K: claimed). A letter is the target, . a refusal.
EXPECTED = """
admit     O . . . . . . . .
dispatch  . O . . . . . . .
seal      . O . . . . . . .
fail      . O . . . . . . .
supersede . O . . . . . . .
complete  . C . . . . . . .
filter    . . D . . . . . .
commit    . . B . . . . . .
claim     . . . K . . . . .
unclaim   . . . . B . . . .
apply     . . . . A . A . .
durable   . . . . . T . . .
evict     . . . D . . . . .
abort     . D D . . . . . .
promote   . O C B . . . . .
give_up   . D . . . . . . .
expire    . . . D . . . . .
reopen    . O C B B R R . .
"""
LETTERS = dict(zip("OCBKARTD", GroupState, strict=True))
COLUMNS: tuple[GroupState | None, ...] = (None, *GroupState)
CELLS = [
    (Event(name), state, LETTERS.get(cell))
    for name, *cells in (line.split() for line in EXPECTED.strip().splitlines())
    for state, cell in zip(COLUMNS, cells, strict=True)
]


def test_the_hand_written_table_covers_every_event() -> None:
    assert [event for event, state, _ in CELLS if state is None] == list(Event)
    assert len(CELLS) == 18 * 9


@pytest.mark.parametrize(("event", "state", "expected"), CELLS)
def test_cell(event: Event, state: GroupState | None, expected: GroupState | None) -> None:
    """The real ledger, driven into `state`, answers `event` as the table says."""
    book = ledger()
    bring(book, state)
    before = dict(book.groups)
    free = book.permits.free
    if state in (GroupState.TRAINED, GroupState.DROPPED):
        assert isinstance(targets(state, event), Refusal)  # such groups have left the ledger
        assert G0 not in book.groups
        return
    if expected is None:
        _assert_refused(book, event)
        assert dict(book.groups) == before
        assert book.permits.free == free
        return
    _perform(book, event)
    found = book.groups[G0].state if G0 in book.groups else expected
    assert found is expected
    book.permits.check(g.id for g in book.groups.values() if g.holds_permit)


def _assert_refused(book: Ledger, event: Event) -> None:
    if event in (Event.SEAL, Event.FAIL):  # results may come late: a verdict, not an exception
        assert _perform(book, event) is not Verdict.ACCEPTED
    else:
        with pytest.raises(TransitionRefused, match=f"{event} of group 0"):
            _perform(book, event)


def _perform(book: Ledger, event: Event) -> object:
    """Apply `event` to group 0 with arguments that would be right in the allowed states."""
    group = book.groups.get(G0)
    if event is Event.ADMIT:
        return admit(book)
    if event is Event.DISPATCH:
        return book.dispatch(G0, slot(0), version=V0)
    if event in (Event.SEAL, Event.FAIL):
        return _result(book, event)
    if event is Event.SUPERSEDE:
        return book.supersede(G0, slot(0))
    if event is Event.COMPLETE:
        if group is not None and group.state is GroupState.OPEN:
            seal_all(book)
        return book.complete(G0)
    if event is Event.COMMIT:
        return book.commit(G0, rewards=(1.0, 1.0), keep=(True, True), position=0)
    if event is Event.CLAIM:
        return book.claim(G0, Step(1))
    if event is Event.PROMOTE:
        return book.promote(G0, Step(1))
    if event is Event.REOPEN:
        return book.reopen(G0, anchor_step=0, abrupt=True)
    if event in (Event.UNCLAIM, Event.APPLY, Event.DURABLE):
        return getattr(book, event.value)(G0)
    return book.drop(G0, event, reason=DropReason.STALE)


def _result(book: Ledger, event: Event) -> Verdict:
    group = book.groups.get(G0)
    if group is not None and group.state is GroupState.OPEN:
        key = book.dispatch(G0, slot(0), version=V0)
    elif group is not None:
        key = group.siblings[0].attempt.key
    else:
        other = ledger()
        bring(other, GroupState.OPEN)
        key = other.groups[G0].siblings[0].attempt.key
    if event is Event.FAIL:
        return book.fail(key, FailureKind.DATA)
    return book.seal(receipt(key))


@pytest.mark.parametrize("state", [GroupState.APPLIED, GroupState.REPLAY])
@pytest.mark.parametrize(("anchor", "expected"), [(0, GroupState.REPLAY), (1, None)])
def test_reopen_depends_on_the_anchor(
    state: GroupState, anchor: int, expected: GroupState | None
) -> None:
    """A step that the restored trainer covers is trained for good; one above it is replayed."""
    book = ledger()
    bring(book, state)
    book.reopen(G0, anchor_step=anchor, abrupt=True)
    if expected is None:
        assert G0 not in book.groups
        assert book.settled.trained == 1
    else:
        assert book.groups[G0].state is expected
        assert not book.permits.holds(G0)


def test_the_printed_table_is_whole() -> None:
    lines = as_markdown().splitlines()
    assert len(lines) == 2 + len(Event)
    assert (
        "| `reopen` | · | open | complete | buffered | buffered | trained or replay |"
        in (lines[-1])
    )
