"""Planted bugs of prefixes and replay: what a life inherits from attempts and steps. See `planted`.

May import: `runtime`, `model`, `ports`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from outlast.model.cut import Cut
from outlast.model.groups import Group
from outlast.model.ids import AttemptKey, GroupId, SiblingIndex
from outlast.model.ledger import Ledger
from outlast.ports import TokenChunk
from outlast.runtime import replay
from outlast.runtime.attempt import Attempts
from outlast.runtime.prefixes import Prefix, PrefixBook

Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def prefix_of_a_superseded_attempt() -> Iterator[None]:
    """The first tokens that a sibling leaves stay its prefix, however many attempts follow."""

    def take(self: PrefixBook, *slot: Any) -> Prefix:
        kept = self._waiting.get(slot, Prefix())
        return Prefix(prompt_ids=kept.prompt_ids, chunks=list(kept.chunks), tokens=kept.tokens)

    def leave(self: PrefixBook, *left: Any) -> None:
        key, prefix = left
        if prefix.tokens:
            self._waiting.setdefault((key.group, key.sibling), prefix)

    with patch.object(PrefixBook, "take", take), patch.object(PrefixBook, "leave", leave):
        yield


@contextmanager
def prefix_counted_twice() -> Iterator[None]:
    """Inherited tokens are recorded as if the attempt had received them itself."""
    real = Attempts._stream

    def stream(self: Attempts, *call: Any, record: Prefix | None) -> AsyncIterator[TokenChunk]:
        inherited = call[1].prefix
        if record is not None and inherited is not None:
            record.append(inherited)
        return real(self, *call, record=record)

    with patch.object(Attempts, "_stream", stream):
        yield


@contextmanager
def prefix_lost_at_the_end() -> Iterator[None]:
    """Attempts that a stop request cancels leave nothing: the last cut lacks their tokens."""
    real = Attempts._pass_on

    def pass_on(self: Attempts, *left: Any) -> None:
        if self._board.stopping is None:
            real(self, *left)

    with patch.object(Attempts, "_pass_on", pass_on):
        yield


@contextmanager
def prefix_restored_for_a_neighbour() -> Iterator[None]:
    """Restored prefixes are given to the sibling before the one they belong to."""

    def restored(rows: Any = ()) -> PrefixBook:
        book = PrefixBook(rows)
        book._waiting = {
            (group, SiblingIndex(max(0, sibling - 1))): prefix
            for (group, sibling), prefix in book._waiting.items()
        }
        return book

    with patch("outlast.runtime.startup.PrefixBook", restored):
        yield


@contextmanager
def replay_in_another_order() -> Iterator[None]:
    """A replayed step takes its groups last to first."""
    real = replay._chunks

    def chunks(groups: list[Group], sizes: tuple[int, ...]) -> Iterator[list[Group]]:
        return real(groups[::-1], sizes)

    with patch.object(replay, "_chunks", chunks):
        yield


@contextmanager
def applied_group_released_early() -> Iterator[None]:
    """The rows of a step are let go when it is applied, not when a checkpoint covers it."""
    real = Ledger.apply

    def apply(self: Ledger, group_id: GroupId) -> Group:
        group = real(self, group_id)
        self._released.extend(receipt.key for receipt in group.receipts())
        return group

    with patch.object(Ledger, "apply", apply):
        yield


@contextmanager
def applied_group_left_out_of_the_cut() -> Iterator[None]:
    """A cut does not name the rows of applied groups: nothing could be replayed from it."""
    real = Cut.row_keys.fget  # type: ignore[attr-defined]

    def row_keys(self: Cut) -> frozenset[AttemptKey]:
        held = [group for group in self.groups if group.state != "applied"]
        named: frozenset[AttemptKey] = real(msgspec.structs.replace(self, groups=tuple(held)))
        return named

    with patch.object(Cut, "row_keys", property(row_keys)):
        yield


RECOVERY_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        prefix_of_a_superseded_attempt,
        prefix_counted_twice,
        prefix_lost_at_the_end,
        prefix_restored_for_a_neighbour,
        replay_in_another_order,
        applied_group_released_early,
        applied_group_left_out_of_the_cut,
    )
}
