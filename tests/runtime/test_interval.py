"""The snapshot interval: the optimum, its bounds, and a cadence that follows measured costs."""

from __future__ import annotations

import math

import pytest

from outlast.runtime.interval import (
    COSTS_KEPT,
    LONGEST_S,
    SHORTEST_S,
    Cadence,
    chosen_interval,
    optimal_interval,
    waste,
)


def test_the_optimum_is_youngs() -> None:
    assert optimal_interval(mtbf_s=14_400.0, cost_s=0.5) == pytest.approx(120.0)
    assert optimal_interval(mtbf_s=3_600.0, cost_s=0.02) == pytest.approx(12.0)


@pytest.mark.parametrize(("mtbf_s", "cost_s"), [(3_600.0, 0.02), (14_400.0, 0.5), (600.0, 2.0)])
def test_no_other_interval_wastes_less(mtbf_s: float, cost_s: float) -> None:
    best = optimal_interval(mtbf_s=mtbf_s, cost_s=cost_s)
    least = waste(best, mtbf_s=mtbf_s, cost_s=cost_s).total
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert waste(best * factor, mtbf_s=mtbf_s, cost_s=cost_s).total > least
    assert least == pytest.approx(math.sqrt(2 * cost_s / mtbf_s) + cost_s / mtbf_s)


def test_waste_adds_what_snapshots_take_and_what_kills_throw_away() -> None:
    found = waste(10.0, mtbf_s=1_000.0, cost_s=0.5)
    assert (found.overhead, found.loss_s) == (0.05, 5.5)
    assert found.loss == pytest.approx(0.0055) and found.total == pytest.approx(0.0555)
    assert waste(0.1, mtbf_s=1_000.0, cost_s=0.5).overhead == 1.0  # one after the other


@pytest.mark.parametrize(
    ("mtbf_s", "cost_s", "interval_s"),
    [(100.0, 1e-6, SHORTEST_S), (1e9, 10.0, LONGEST_S), (3_600.0, 0.02, 12.0)],
)
def test_a_chosen_interval_stays_within_bounds(
    mtbf_s: float, cost_s: float, interval_s: float
) -> None:
    assert chosen_interval(mtbf_s=mtbf_s, cost_s=cost_s) == pytest.approx(interval_s)


def test_a_fixed_cadence_ignores_what_it_costs() -> None:
    for interval in (10.0, None):
        cadence = Cadence(interval, mtbf_s=None)
        cadence.measured(100.0)
        assert cadence.interval_s == interval


def test_auto_chooses_anew_after_each_measurement() -> None:
    cadence = Cadence(SHORTEST_S, mtbf_s=3_600.0)
    seen = []
    for cost in (0.02, 0.02, 0.08):
        cadence.measured(cost)
        seen.append(cadence.interval_s)
    assert seen == pytest.approx([12.0, 12.0, math.sqrt(2 * 3_600 * 0.04)])


def test_auto_follows_costs_that_grow() -> None:
    cadence = Cadence(SHORTEST_S, mtbf_s=3_600.0)
    for cost in [0.02] * 100 + [0.5] * COSTS_KEPT:
        cadence.measured(cost)
    assert cadence.interval_s == pytest.approx(60.0)


def test_auto_tells_of_changes_that_matter() -> None:
    cadence = Cadence(SHORTEST_S, mtbf_s=3_600.0)
    assert cadence.measured(0.02)
    assert not cadence.measured(0.021)
    assert cadence.measured(0.08)
