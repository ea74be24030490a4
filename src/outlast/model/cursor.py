"""The dataset cursor: order is a pure function of (seed, epoch), state is two integers.

order(epoch) = indices sorted by sha256(seed, epoch, index). Part of the on-disk format, with golden
vectors: no library shuffle can change it. Draws form one stream across epochs, and the n-th draw
is group n, so a group id alone says which prompt it holds (S4). May import: `ids`, `groups`.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from outlast.errors import InvariantError
from outlast.model.groups import DrawnPrompt, PromptRef
from outlast.model.ids import GroupId


class CursorState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the next draw comes from, readable by a person."""

    epoch: int
    position: int
    """Items of this epoch already drawn; in [0, size)."""
    drawn: int
    """Draws along the lineage = epoch * size + position."""
    exhausted: bool
    """Explicit: the last permitted epoch has been drawn to its end."""


def permutation(*, seed: int, epoch: int, size: int) -> tuple[int, ...]:
    """Indices [0, size) sorted by sha256 of three little-endian int64 (seed, epoch, index)."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(struct.pack("<qqq", seed, epoch, index)).digest()

    return tuple(sorted(range(size), key=rank))


class DatasetOrder:
    """The infinite stream of (epoch, index) that a dataset of `size` items gives under `seed`."""

    def __init__(self, *, seed: int, size: int) -> None:
        if size < 1:
            raise InvariantError(f"dataset order over {size} items; at least 1 is required")
        self.seed = seed
        self.size = size
        self._epochs: dict[int, tuple[int, ...]] = {}

    def at(self, draw: int) -> tuple[int, int]:
        """(epoch, index) of the draw with number `draw`, from 0."""
        epoch, position = divmod(draw, self.size)
        return epoch, self._epoch(epoch)[position]

    def _epoch(self, epoch: int) -> tuple[int, ...]:
        if epoch not in self._epochs:
            while len(self._epochs) > 2:  # a batch spans two epochs; a third serves the self-check
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = permutation(seed=self.seed, epoch=epoch, size=self.size)
        return self._epochs[epoch]


class DatasetCursor:
    """Owner of the position in the stream."""

    def __init__(self, order: DatasetOrder, *, dataset: str, epochs: int, drawn: int = 0) -> None:
        self._order = order
        self._dataset = dataset
        self._end = epochs * order.size
        self._drawn = drawn

    @property
    def remaining(self) -> int:
        """Draws left until the stream ends."""
        return max(0, self._end - self._drawn)

    @property
    def state(self) -> CursorState:
        epoch, position = divmod(self._drawn, self._order.size)
        return CursorState(
            epoch=epoch, position=position, drawn=self._drawn, exhausted=self.remaining == 0
        )

    def draw(self) -> DrawnPrompt:
        """Draw the next prompt and mint its group id. Raises InvariantError past the end."""
        if not self.remaining:
            raise InvariantError(f"draw past the end of the dataset ({self._end} draws)")
        epoch, index = self._order.at(self._drawn)
        drawn = DrawnPrompt(
            id=GroupId(self._drawn),
            prompt=PromptRef(dataset=self._dataset, epoch=epoch, index=index),
        )
        self._drawn += 1
        return drawn
