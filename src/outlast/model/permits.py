"""Permits: the one object that states capacity = free + held (S5).

A group holds one permit of `max_buffered_rollouts` while it is OPEN, COMPLETE, BUFFERED or
CLAIMED. Acquire and release go by group id, so a leak or a double release is an error at once and
not a slow loss of capacity. May import: `ids`, `errors`.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.errors import InvariantError
from outlast.model.ids import GroupId


class Permits:
    """Who holds a permit. Mutated only by the ledger, in the event that moves the group."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise InvariantError(f"{capacity} permits; at least 1 is required")
        self.capacity = capacity
        self._held: set[GroupId] = set()

    @property
    def held(self) -> int:
        """Permits in use."""
        return len(self._held)

    @property
    def free(self) -> int:
        """capacity - held; negative when restored groups exceed a capacity that was lowered."""
        return self.capacity - len(self._held)

    def holds(self, group: GroupId) -> bool:
        return group in self._held

    def acquire(self, group: GroupId) -> None:
        """Take a permit for `group`, whatever is free: restored groups always get theirs.

        Whether a new group may be admitted is asked beforehand, of `free`. Raises InvariantError
        when the group holds one already.
        """
        if group in self._held:
            raise InvariantError(f"S5: group {group} acquires a second permit ({self})")
        self._held.add(group)

    def release(self, group: GroupId) -> None:
        """Give the permit of `group` back. Raises InvariantError when it holds none."""
        if group not in self._held:
            raise InvariantError(f"S5: group {group} releases a permit it does not hold ({self})")
        self._held.remove(group)

    def check(self, expected_holders: Iterable[GroupId]) -> None:
        """Raise InvariantError unless exactly `expected_holders` hold a permit each."""
        expected = set(expected_holders)
        leaked, missing = sorted(self._held - expected), sorted(expected - self._held)
        if leaked or missing:
            raise InvariantError(
                f"S5: permits leaked by groups {leaked}, missing for groups {missing} ({self})"
            )

    def __str__(self) -> str:
        return f"capacity {self.capacity} = {self.free} free + {self.held} held"
