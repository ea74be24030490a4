"""A controller that was replaced and goes on: the new one must not notice (A1 to A6, S7)."""

from __future__ import annotations

from outlast.testing.crash_scripts import short_script
from outlast.testing.crash_takeover import enumerate_takeovers


def test_S7_a_replaced_controller_hurts_nobody_wherever_it_wakes_up(
    exhaustive: bool, told: list[str]
) -> None:
    tally = enumerate_takeovers(short_script, stride=1 if exhaustive else 11)
    told.append(f"{tally.line()}; 0 violations")
    assert tally.ends["fenced"] > tally.points // 2
