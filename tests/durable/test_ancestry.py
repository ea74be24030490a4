"""Lineage of DESIGN 2 on made-up histories of incarnations."""

from __future__ import annotations

import pytest

from outlast.durable.ancestry import lineage, on_lineage
from outlast.durable.manifest import IncarnationRecord
from tests.durable.scenes import life, listing, snapshot, step


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([], {}),
        ([life(1)], {1: None}),
        ([life(1), life(2, first=4, restored=3)], {2: None, 1: 3}),
        # 2 published nothing, so cut 3 is still of 1
        ([life(1), life(2, 4, 3), life(3, 4, 3)], {3: None, 1: 3}),
        # 3 went on from 2's cut 5, 2 from 1's cut 3
        ([life(1), life(2, 4, 3), life(3, 6, 5)], {3: None, 2: 5, 1: 3}),
        # 3 rewound past all of 2
        ([life(1), life(2, 4, 3), life(3, 6, 2)], {3: None, 1: 2}),
        # a life that started fresh has no ancestors
        ([life(1), life(2)], {2: None}),
        # the record of the owner is gone
        ([life(2, 4, 3)], {2: None}),
    ],
)
def test_lineage(lives: list[IncarnationRecord], expected: dict[int, int | None]) -> None:
    assert lineage(lives) == expected
    assert lineage(lives[::-1]) == expected


def test_on_lineage_holds_snapshots_and_checkpoints_of_the_lineage_alone() -> None:
    held = listing(
        step(1, 2),
        snapshot(3, 1),
        snapshot(4, 1),
        snapshot(5, 1, run="run-b"),
        snapshot(6, 1, incarnation=2),
        lives=[life(1), life(2, first=5, restored=3)],
    )
    assert {str(path) for path in on_lineage(held)} == {
        "step_000001",
        "snapshots/snapshot_000003",
        "snapshots/snapshot_000006",
    }
