"""The metrics view: names of DESIGN 15, dense series, values that follow from the events."""

from __future__ import annotations

import pytest

from outlast.model.groups import DropReason, FailureKind
from outlast.telemetry import events
from outlast.telemetry.events import SkipReason
from outlast.telemetry.metrics import Histogram, MetricsView, Point
from tests.telemetry import samples


def values(*stream: events.AnyEvent) -> dict[str, float]:
    """Last value of every series after the events."""
    view = MetricsView()
    points = [p for event in stream for p in view(event) if isinstance(p, Point)]
    return {point.name: point.value for point in points}


def test_a_snapshot_gives_every_timing_of_the_field() -> None:
    found = values(samples.published())
    timing = {k: v for k, v in found.items() if k.startswith("timing/rollout_checkpoint/")}
    assert timing == pytest.approx(
        {
            "timing/rollout_checkpoint/total_save_seconds": 0.040,
            "timing/rollout_checkpoint/barrier_wait_seconds": 0.0,
            "timing/rollout_checkpoint/exclusive_hold_seconds": 0.001,
            "timing/rollout_checkpoint/sidecar_save_seconds": 0.030,
            "timing/rollout_checkpoint/snapshot_commit_seconds": 0.009,
        }
    )


@pytest.mark.parametrize("reason", SkipReason)
def test_outcomes_are_dense_over_every_reason(reason: SkipReason) -> None:
    found = values(samples.published(), samples.skipped(reason), samples.skipped(reason))
    prefix = "rollout/checkpoint_outcome/"
    outcomes = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
    expected = {f"reason_{r}": 2.0 if r is reason else 0.0 for r in SkipReason}
    assert outcomes == expected | {"published": 1.0}


def test_drops_and_failures_are_dense_over_every_reason() -> None:
    found = values(
        events.GroupDropped(group=1, reason="stale"),
        events.AttemptFailed(key="k", kind="data", cause="x"),
        samples.step(1),
    )
    assert {f"rollout/dropped/{r}": found[f"rollout/dropped/{r}"] for r in DropReason} == {
        f"rollout/dropped/{r}": float(r is DropReason.STALE) for r in DropReason
    }
    assert [found[f"rollout/failures/{k}"] for k in FailureKind] == [0.0, 1.0]


def test_a_step_gives_throughput_and_the_staleness_histogram() -> None:
    view = MetricsView()
    for _ in range(3):
        assert view(samples.sealed(tokens=100)) == ()
    found = view(samples.step(7))
    points = {s.name: s for s in found if isinstance(s, Point)}
    assert points["rollout/throughput/sealed_tokens_per_second"].value == pytest.approx(150.0)
    assert points["rollout/throughput/trained_groups_per_second"].value == pytest.approx(1.0)
    assert points["train/loss"] == Point("train/loss", 7, -0.01)
    assert points["rollout/staleness/max"].value == 1.0
    assert [s for s in found if isinstance(s, Histogram)] == [
        Histogram("rollout/staleness", 7, (0, 1))
    ]
    again = {s.name: s.value for s in view(samples.step(8)) if isinstance(s, Point)}
    assert again["rollout/throughput/sealed_tokens_per_second"] == 0.0  # counted once


def test_a_restore_sets_the_abscissa_and_counts_what_came_back() -> None:
    view = MetricsView()
    found = {p.name: p for p in view(samples.restored()) if isinstance(p, Point)}
    assert found["rollout/recovered_tokens"] == Point("rollout/recovered_tokens", 12, 50_113.0)
    assert found["rollout/recovery/candidates_rejected"].value == 1.0
    assert found["timing/rollout_recovery/load_seconds"].value == pytest.approx(0.31)


def test_a_replayed_step_moves_the_abscissa() -> None:
    view = MetricsView()
    found = {p.name: p for p in view(samples.replayed(11, loss=(0.1, 0.2))) if isinstance(p, Point)}
    assert found["rollout/recovery/replay_differences"].value == 1.0
    assert found["timing/rollout_recovery/replay_step_seconds"].step == 11


def test_gauges_before_the_first_snapshot_have_no_age() -> None:
    assert values(samples.gauges())["rollout/checkpoint/age_seconds"] == 3.0
    first = events.Gauges(
        **{f: getattr(samples.gauges(), f) for f in samples.gauges().__struct_fields__}
        | {"last_snapshot_age_s": None}
    )
    found = values(first)
    assert "rollout/checkpoint/age_seconds" not in found
    assert found["rollout/at_risk_tokens"] == 12_345.0


def test_every_name_is_a_path_of_plain_words() -> None:
    names = values(*samples.one_of_each())
    assert all(name.split("/")[0] in {"timing", "train", "rollout", "validation"} for name in names)
    assert all(name.replace("/", "").replace("_", "").isalnum() for name in names)
