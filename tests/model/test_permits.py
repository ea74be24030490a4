"""S5: permits are conserved, whatever is acquired and released in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlast.errors import InvariantError
from outlast.model.ids import GroupId
from outlast.model.permits import Permits

IDS = st.integers(0, 5).map(GroupId)


class PermitsMachine(RuleBasedStateMachine):
    """The naive model is a list of ids: one entry per permit in use."""

    @initialize(capacity=st.integers(1, 4))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.permits = Permits(capacity)
        self.model: list[GroupId] = []

    @rule(group=IDS)
    def acquire(self, group: GroupId) -> None:
        if group in self.model:
            with pytest.raises(InvariantError, match=f"S5: group {group} acquires a second"):
                self.permits.acquire(group)
        else:
            self.permits.acquire(group)
            self.model.append(group)

    @rule(group=IDS)
    def release(self, group: GroupId) -> None:
        if group in self.model:
            self.permits.release(group)
            self.model.remove(group)
        else:
            with pytest.raises(InvariantError, match=f"S5: group {group} releases a permit it"):
                self.permits.release(group)

    @rule(group=IDS)
    def wrong_sum(self, group: GroupId) -> None:
        claimed = set(self.model) ^ {group}
        word = "leaked" if group in self.model else "missing"
        with pytest.raises(InvariantError, match=rf"{word} (by|for) groups \[{group}\]"):
            self.permits.check(claimed)

    @invariant()
    def sum_holds(self) -> None:
        assert self.permits.free + len(self.model) == self.capacity
        assert self.permits.held == len(self.model)
        assert all(self.permits.holds(GroupId(i)) == (i in self.model) for i in range(6))
        self.permits.check(self.model)


TestPermits = PermitsMachine.TestCase


def test_s5_restored_groups_get_permits_above_a_lowered_capacity() -> None:
    permits = Permits(2)
    for group in range(5):
        permits.acquire(GroupId(group))
    assert permits.free == -3
    for group in range(4):
        permits.release(GroupId(group))
    assert permits.free == 1
    assert str(permits) == "capacity 2 = 1 free + 1 held"


def test_capacity_below_one_is_refused() -> None:
    with pytest.raises(InvariantError, match="0 permits; at least 1"):
        Permits(0)
