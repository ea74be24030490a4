"""Names are parsed by full match and compared as integers (known failures 68 and 76)."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.durable import names
from outlast.model.ids import Incarnation, Sequence, TrainerVersion

numbers = st.integers(min_value=0, max_value=10**9)


@given(numbers)
def test_what_is_written_is_parsed(number: int) -> None:
    assert names.parse_snapshot(names.snapshot(Sequence(number))) == number
    assert names.parse_checkpoint(names.checkpoint(TrainerVersion(number))) == number
    assert names.parse_incarnation(names.incarnation(Incarnation(number))) == number
    assert names.parse_incarnation_end(names.incarnation_end(Incarnation(number))) == number
    for prefix in ("tmp", "trash"):
        snapshot = names.snapshot_debris(prefix, Sequence(number))
        step = names.checkpoint_debris(prefix, TrainerVersion(3), sequence=Sequence(number))
        for name in (snapshot, step):
            assert names.is_debris(name) and names.parse_debris_sequence(name) == number
    assert names.is_stale(names.stale(TrainerVersion(number), Incarnation(2)))
    assert names.is_segment(names.segment(Incarnation(number), 4))


@pytest.mark.parametrize(
    "name",
    [
        "snapshot_1",
        "snapshot_000001.bak",
        "snapshot_0000001",
        "xsnapshot_000001",
        "snapshot_00000a",
        "snapshot_000001\n",
        "snapshot_٠٠٠٠٠١",
        "step_000001",
        "",
    ],
)
def test_other_names_are_no_snapshots(name: str) -> None:
    assert names.parse_snapshot(name) is None


def test_other_names_are_neither_debris_nor_numbers() -> None:
    assert not names.is_debris("tmp_") and not names.is_debris("my_tmp_1")
    assert not names.is_stale("stale_step_000001") and not names.is_segment("seg.arrow")
    assert names.parse_debris_sequence("tmp_0_run.json") is None
    assert names.parse_incarnation("000001.end.json") is None


def test_step_10_is_newer_than_step_9() -> None:
    found = [names.parse_checkpoint(f"step_{n:06d}") for n in (9, 10, 1_000_000)]
    assert max(n for n in found if n is not None) == 1_000_000


def test_places() -> None:
    paths = names.RunPaths(PurePosixPath("/r"))
    assert str(paths.bootstrap) == "/r/bootstrap/anchor.json"
    assert str(paths.segments) == "/r/segments"
