"""Packed JSON: any damage is proven corruption, and the content comes back bit for bit (A1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.durable.packing import pack, unpack
from outlast.errors import CorruptData


@given(st.binary(max_size=4096))
def test_what_was_packed_comes_back(data: bytes) -> None:
    assert unpack(pack(data), where="x") == data


def test_records_that_repeat_their_names_shrink() -> None:
    data = b'{"prompt_tokens":12,"response_tokens":34,"truncated":false}' * 1000
    assert len(pack(data)) * 20 < len(data)


@pytest.mark.parametrize("frame", [b"", b"{}", pack(b"whole" * 100)[:-9]])
def test_what_is_no_whole_frame_is_corrupt(frame: bytes) -> None:
    with pytest.raises(CorruptData, match="rows/index is not a Zstandard frame"):
        unpack(frame, where="rows/index")
