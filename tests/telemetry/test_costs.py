"""What snapshots cost, folded from events."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.telemetry.costs import costs_of, read_costs
from outlast.telemetry.events import AnyEvent, Gauges, SnapshotPublished
from outlast.telemetry.sinks import JsonlSink, telemetry_file
from outlast.telemetry.summary import Stamped


def snapshot(save_s: float, *, final: bool = False) -> SnapshotPublished:
    return SnapshotPublished(
        id="snapshot_000001",
        sequence=1,
        trainer_version=0,
        bytes_written=100,
        bytes_total=1_000,
        groups=1,
        rows=1,
        hold_s=0.001,
        save_s=save_s,
        commit_s=0.1,
        final=final,
    )


def gauges(rate: float, risk: int) -> Gauges:
    return Gauges(
        trainer_version=0,
        served_version=0,
        open_groups=0,
        buffered_groups=0,
        claimed_groups=0,
        inflight_siblings=0,
        tokens_per_s=rate,
        last_snapshot_age_s=None,
        at_risk_tokens=risk,
        at_risk_s=0.0,
    )


LIFE: list[tuple[float, AnyEvent]] = [
    (10.0, snapshot(0.1)),
    (11.0, gauges(0.0, 0)),
    (12.0, gauges(500.0, 300)),
    (14.0, snapshot(0.3)),
    (15.0, snapshot(0.2, final=True)),
]


def test_costs_are_means_over_published_snapshots() -> None:
    found = costs_of([[Stamped(wall, event) for wall, event in LIFE], []])
    assert (found.snapshots, found.interval_s) == (3, 4.0)
    assert found.cost_s == pytest.approx(0.3) and found.hold_s == pytest.approx(0.001)
    assert (found.tokens_per_s, found.at_risk_tokens, found.bytes_new) == (500.0, 150.0, 100.0)


def test_a_run_that_says_nothing_costs_nobody_knows_what(tmp_path: Path) -> None:
    found = read_costs(tmp_path)
    assert found.snapshots == 0 and found.cost_s is found.tokens_per_s is found.interval_s is None


def test_lives_are_read_from_their_files(tmp_path: Path) -> None:
    for number, save_s in ((1, 0.1), (2, 0.5)):
        sink = JsonlSink(telemetry_file(tmp_path, number))
        sink(snapshot(save_s), 100.0 * number)
        sink.close()
    both, newest = read_costs(tmp_path), read_costs(tmp_path, newest_only=True)
    assert both.cost_s == pytest.approx(0.4) and newest.cost_s == pytest.approx(0.6)
    assert both.interval_s is None  # time between lives is no interval
