"""`snapshot_attempt_interval_s: auto`, in the real program: what was measured decides."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from outlast.runtime.interval import chosen_interval
from outlast.telemetry import events
from tests.e2e.program import outlast, sets, taped

MTBF_S = 200.0


def test_auto_snapshots_at_the_interval_that_it_chose(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    done = outlast(
        "train",
        *sets(
            "algorithm.max_num_steps=60",
            "rollout_checkpointing.snapshot_attempt_interval_s=auto",
            f"rollout_checkpointing.mtbf_s={MTBF_S}",
        ),
        "--run-dir",
        tmp_path / "run",
        "--tape",
        tape,
    )
    assert done.returncode == 0, done.stderr
    said = taped(tape)
    chosen = [event for event in said if isinstance(event, events.IntervalChosen)]
    assert chosen and "from now on one every" in done.stdout + done.stderr
    for event in chosen:
        expected = chosen_interval(mtbf_s=MTBF_S, cost_s=event.cost_s)
        assert event.interval_s == pytest.approx(expected)
    assert chosen[0].interval_s > 1.0
    published = [e for e in said if isinstance(e, events.SnapshotPublished) and not e.final]
    costs = [event.hold_s + event.save_s + event.commit_s for event in published]
    assert chosen[0].cost_s == pytest.approx(costs[0], rel=0.5)
    for before, after in pairwise(said):  # each choice follows the snapshot that was measured
        if isinstance(after, events.IntervalChosen):
            assert isinstance(before, events.SnapshotPublished)
