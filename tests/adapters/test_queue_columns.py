"""What TransferQueue leaves out or changes in silence is refused: no row is used on its word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("tensordict")

import torch

from outlast.adapters.planes.queue_columns import DTYPES, QueueFault, decode, encode
from outlast.rows import Row, row_digest
from tests.contracts.plane_contract import make_row, stored_digest

ROWS = [make_row(i) for i in range(6)]
STORED = [(row, stored_digest(row)) for row in ROWS]
WANTED: dict[Any, str | None] = {row.key: digest for row, digest in STORED}


def test_rows_come_back_bit_for_bit() -> None:
    assert [row_digest(row) for row in decode(encode(STORED), WANTED)] == list(WANTED.values())
    unknown = dict.fromkeys(WANTED)
    assert [row_digest(row) for row in decode(encode(STORED), unknown)] == list(WANTED.values())
    empty = [(ROWS[0], WANTED[ROWS[0].key] or "")]
    assert len(decode(encode(empty), {ROWS[0].key: None})) == 1


@pytest.mark.parametrize("name", DTYPES)
def test_every_column_that_is_missing_or_of_another_dtype_is_refused(name: str) -> None:
    reply = encode(STORED)
    other = torch.nested.as_nested_tensor(
        [value.to(torch.int64) for value in reply[name].unbind()], layout=torch.jagged
    )
    with pytest.raises(QueueFault, match=rf"{name} came back as int64\[\d+\]"):
        decode(reply.clone().update({name: other}), WANTED)
    del reply[name]
    with pytest.raises(QueueFault, match=rf"lacks columns \['{name}'\]"):
        decode(reply, WANTED)


def swapped(row: Row, digest: str) -> tuple[Row, str]:
    return row, digest[::-1]


def shortened(row: Row, digest: str) -> tuple[Row, str]:
    return make_row(row.key.group, tokens=3), digest


def of_another_key(row: Row, digest: str) -> tuple[Row, str]:
    other = make_row(row.key.group, n=9)
    return other, stored_digest(other)


@pytest.mark.parametrize("change", [swapped, shortened, of_another_key])
def test_another_row_is_refused(change: Callable[[Row, str], tuple[Row, str]]) -> None:
    damaged = [change(*STORED[3]) if at == 3 else item for at, item in enumerate(STORED)]
    with pytest.raises(QueueFault):
        decode(encode(damaged), WANTED)
    with pytest.raises(QueueFault):
        decode(encode(damaged), dict.fromkeys(WANTED))


def test_fewer_rows_and_rows_in_another_order_are_refused() -> None:
    with pytest.raises(QueueFault, match="has 5 rows, asked for 6"):
        decode(encode(STORED[:-1]), WANTED)
    with pytest.raises(QueueFault, match=r"asked for row g0\.s0\.i1\.n0"):
        decode(encode(STORED[::-1]), WANTED)
