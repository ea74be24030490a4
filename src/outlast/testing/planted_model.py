"""Planted bugs of the model layer: permits, seals, counters, the cut. See `planted`.

May import: `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from outlast.model.cursor import DatasetCursor
from outlast.model.cut import Cut
from outlast.model.groups import GroupState, Sibling
from outlast.model.ids import AttemptKey, GroupId, Step
from outlast.model.ledger import Ledger
from outlast.model.permits import Permits
from outlast.model.promotion import lender
from outlast.model.state import RecoveryState
from outlast.model.table import Event

Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def permit_leak() -> Iterator[None]:
    """Every third release of a permit is forgotten."""
    real, calls = Permits.release, 0

    def release(self: Permits, group: GroupId) -> None:
        nonlocal calls
        calls += 1
        if calls % 3:
            real(self, group)

    with patch.object(Permits, "release", release):
        yield


@contextmanager
def late_seal_accepted() -> Iterator[None]:
    """Whoever answers for a sibling may seal it, whatever attempt it was."""

    def current(self: Ledger, key: AttemptKey) -> Sibling | None:
        group = self.groups.get(key.group)
        if group is None or group.state is not GroupState.OPEN:
            return None
        return group.siblings[key.sibling]

    with patch.object(Ledger, "_current", current):
        yield


@contextmanager
def filtered_credit_lost() -> Iterator[None]:
    """A filtered group keeps its admission: the sampler starves."""
    real = RecoveryState._drop

    def drop(self: RecoveryState, *args: Any, **kw: Any) -> None:
        if Event.FILTER in args:
            kw["credit"] = False
        real(self, *args, **kw)

    with patch.object(RecoveryState, "_drop", drop):
        yield


@contextmanager
def restored_groups_without_permit() -> Iterator[None]:
    """Restored groups get a permit only while some are free (capacity was lowered)."""
    real = Permits.acquire

    def acquire(self: Permits, group: GroupId) -> None:
        if self.free > 0:
            real(self, group)

    with patch.object(Permits, "acquire", acquire):
        yield


@contextmanager
def claimed_groups_lost() -> Iterator[None]:
    """Claimed groups count as trained already when a life takes over."""
    real = Ledger.reopen

    def reopen(self: Ledger, group_id: GroupId, **kw: Any) -> Any:
        group = self.groups[group_id]
        if group.state is GroupState.CLAIMED:
            self._groups[group_id] = msgspec.structs.replace(group, state=GroupState.TRAINED)
            self.permits.release(group_id)
            return self._settle(self._groups[group_id])
        return real(self, group_id, **kw)

    with patch.object(Ledger, "reopen", reopen):
        yield


@contextmanager
def restored_counter_off_by_one() -> Iterator[None]:
    """The buffer position of the next commit is restored one too low."""
    real = RecoveryState.restored.__func__  # type: ignore[attr-defined]

    def restored(cls: type[RecoveryState], *args: Any, **kw: Any) -> RecoveryState:
        state: RecoveryState = real(cls, *args, **kw)
        state._next_position = max(0, state._next_position - 1)
        return state

    with patch.object(RecoveryState, "restored", classmethod(restored)):
        yield


@contextmanager
def cursor_ahead_of_index() -> Iterator[None]:
    """The restored cursor skips a prompt that nobody has drawn."""
    real = RecoveryState.restored.__func__  # type: ignore[attr-defined]

    def restored(cls: type[RecoveryState], *args: Any, **kw: Any) -> RecoveryState:
        state: RecoveryState = real(cls, *args, **kw)
        cursor: DatasetCursor = state._cursor
        if cursor.remaining:
            cursor.draw()
        return state

    with patch.object(RecoveryState, "restored", classmethod(restored)):
        yield


@contextmanager
def cut_of_another_moment() -> Iterator[None]:
    """A cut carries the groups of the cut before it: copied too early, at another await."""
    real = RecoveryState.cut
    older: dict[int, Cut] = {}

    def cut(self: RecoveryState, **kw: Any) -> Cut:
        taken = real(self, **kw)
        before = older.get(id(self))
        older[id(self)] = taken
        same = before is not None and before.cursor == taken.cursor
        if before is None or not same or before.trainer_version != taken.trainer_version:
            return taken
        if before.settled != taken.settled or before.log != taken.log:
            return taken
        return msgspec.structs.replace(taken, groups=before.groups)

    with patch.object(RecoveryState, "cut", cut):
        yield


@contextmanager
def inflight_counts_as_sealed() -> Iterator[None]:
    """At level prompt_group an interrupted group keeps what it had sealed."""
    with patch.object(Ledger, "_start_over", lambda self, group_id: None):
        yield


@contextmanager
def loan_not_repaid() -> Iterator[None]:
    """A finished group stands in at an earlier step, and its own step is owed nothing."""
    real = RecoveryState._owe

    def owe(self: RecoveryState, step: Step) -> GroupId | None:
        found = lender(self.ledger.groups, step)
        if found is None:
            return real(self, step)
        self.ledger.promote(found.id, step)
        return found.id

    with patch.object(RecoveryState, "_owe", owe):
        yield


MODEL_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        permit_leak,
        late_seal_accepted,
        filtered_credit_lost,
        restored_groups_without_permit,
        claimed_groups_lost,
        restored_counter_off_by_one,
        cursor_ahead_of_index,
        cut_of_another_moment,
        inflight_counts_as_sealed,
        loan_not_repaid,
    )
}
