"""Forks and exports, killed anywhere: the source as it was, the new directory absent or whole."""

from __future__ import annotations

import pytest

from outlast.testing.crash_fork import (
    Making,
    all_makings,
    enumerate_making,
    fail_making,
    make_twice,
)

makings = pytest.mark.parametrize("making", all_makings(), ids=lambda m: m.name.replace(" ", "-"))


@makings
@pytest.mark.parametrize("empty", [False, True], ids=["absent", "empty"])
def test_A3_a_kill_leaves_nothing_or_all_of_it_and_the_next_try_goes_through(
    making: Making, empty: bool, exhaustive: bool, told: list[str]
) -> None:
    models = "KO" if exhaustive and making.name != "fork at step_000001" else "K"
    tally = enumerate_making(making, models=models, empty=empty)
    told.append(f"{making.name}: {tally.line()}; 0 violations")
    assert tally.points > 15 and tally.judged >= 1


@makings
def test_P4_an_io_error_leaves_nothing_or_all_of_it(
    making: Making, exhaustive: bool, told: list[str]
) -> None:
    every = 5 if exhaustive or making.name == "export" else 23  # an export makes few calls
    fired = fail_making(making, stride=every)
    told.append(f"{making.name}: {fired} I/O errors; 0 violations")
    assert fired > 10


@makings
def test_of_two_that_build_at_once_exactly_one_succeeds(making: Making, told: list[str]) -> None:
    won = make_twice(making)
    told.append(f"{making.name}, two at once: won {won}")
    assert won["first"] + won["second"] > 1
