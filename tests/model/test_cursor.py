"""S4: the dataset order is a format with golden vectors, and the cursor walks it without a gap."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlast.errors import InvariantError
from outlast.model.cursor import CursorState, DatasetCursor, DatasetOrder, permutation
from outlast.model.groups import DrawnPrompt, PromptRef
from outlast.model.ids import GroupId

GOLDEN = [
    (0, 0, (5, 3, 2, 1, 0, 4, 8, 9, 6, 7)),
    (0, 1, (6, 3, 7, 8, 5, 0, 2, 9, 1, 4)),
    (1, 0, (4, 6, 2, 0, 3, 7, 8, 5, 9, 1)),
    (-1, 0, (9, 3, 5, 0, 7, 4, 6, 1, 8, 2)),
    (2**40, 7, (4, 2, 5, 3, 7, 0, 6, 1)),
    (0, 0, (0,)),
]


@pytest.mark.parametrize(("seed", "epoch", "expected"), GOLDEN)
def test_golden_order(seed: int, epoch: int, expected: tuple[int, ...]) -> None:
    assert permutation(seed=seed, epoch=epoch, size=len(expected)) == expected


def test_golden_digest_of_a_large_order() -> None:
    order = permutation(seed=20240229, epoch=3, size=100_000)
    assert order[:8] == (49327, 79034, 39282, 24585, 22501, 92677, 75697, 99183)
    digest = hashlib.sha256(struct.pack("<100000q", *order)).hexdigest()
    assert digest == "1fc92e9dad3a0331ca9f318d2987935ed8e92e1345d1e600d095d00ac2fdfcf0"


@given(seed=st.integers(-(2**63), 2**63 - 1), epoch=st.integers(0, 2**20), size=st.integers(1, 40))
def test_order_follows_its_definition(seed: int, epoch: int, size: int) -> None:
    def bytes_of(number: int) -> bytes:
        return number.to_bytes(8, "little", signed=True)

    head = bytes_of(seed) + bytes_of(epoch)
    ranked = sorted((hashlib.sha256(head + bytes_of(i)).hexdigest(), i) for i in range(size))
    assert permutation(seed=seed, epoch=epoch, size=size) == tuple(i for _, i in ranked)


class CursorMachine(RuleBasedStateMachine):
    """The naive model is the list of all draws, written out epoch after epoch."""

    @initialize(size=st.integers(1, 5), seed=st.integers(0, 3), epochs=st.integers(1, 4))
    def start(self, size: int, seed: int, epochs: int) -> None:
        self.size, self.epochs = size, epochs
        self.stream = [
            (epoch, index)
            for epoch in range(epochs)
            for index in permutation(seed=seed, epoch=epoch, size=size)
        ]
        self.order = DatasetOrder(seed=seed, size=size)
        self.cursor = DatasetCursor(self.order, dataset="d", epochs=epochs)
        self.drawn = 0

    @rule(count=st.integers(1, 7))
    def draw(self, count: int) -> None:
        for _ in range(count):
            if self.drawn == len(self.stream):
                with pytest.raises(InvariantError, match="draw past the end of the dataset"):
                    self.cursor.draw()
                return
            epoch, index = self.stream[self.drawn]
            expected = PromptRef(dataset="d", epoch=epoch, index=index)
            assert self.cursor.draw() == DrawnPrompt(id=GroupId(self.drawn), prompt=expected)
            self.drawn += 1

    @rule()
    def restart(self) -> None:
        drawn = self.cursor.state.drawn
        self.cursor = DatasetCursor(self.order, dataset="d", epochs=self.epochs, drawn=drawn)

    @rule(data=st.data())
    def look_anywhere(self, data: st.DataObject) -> None:
        draw = data.draw(st.integers(0, len(self.stream) - 1))
        assert self.order.at(draw) == self.stream[draw]

    @invariant()
    def state_is_two_integers(self) -> None:
        assert self.cursor.remaining == len(self.stream) - self.drawn
        assert self.cursor.state == CursorState(
            epoch=self.drawn // self.size,
            position=self.drawn % self.size,
            drawn=self.drawn,
            exhausted=self.drawn == len(self.stream),
        )


TestCursor = CursorMachine.TestCase


def test_a_lowered_number_of_epochs_ends_the_stream() -> None:
    order = DatasetOrder(seed=0, size=4)
    cursor = DatasetCursor(order, dataset="d", epochs=1, drawn=6)
    assert cursor.remaining == 0 and cursor.state.exhausted


def test_empty_dataset_is_refused() -> None:
    with pytest.raises(InvariantError, match="dataset order over 0 items; at least 1"):
        DatasetOrder(seed=0, size=0)
