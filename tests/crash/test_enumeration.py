"""A1-A6 on every tree that a crash could leave (models K, O, P) or rot could make (R)."""

from __future__ import annotations

from outlast.durable import names
from outlast.durable.segmentfile import INDEX
from outlast.testing import crashes
from outlast.testing.crash_scripts import long_script, short_script


def test_a1_to_a6_hold_on_every_crash_state_of_two_snapshots_and_a_checkpoint(
    exhaustive: bool, told: list[str]
) -> None:
    tally = crashes.enumerate_script(short_script, models="KOP" if exhaustive else "KO")
    told.append(f"short life: {tally.line()}; 0 violations")
    assert tally.states["K"] > 150 and tally.states["O"] > 10_000
    assert tally.judged > 200
    assert tally.rot["fallback"] > 20, "damage of the newest cut must lead to an older one"
    assert tally.rot["refused"] > 5, "damage of the run's own records must be refused"
    assert {names.PREFIXES, names.STATE, INDEX} <= tally.rotten, "prefixes and packed files rot too"


def test_a1_to_a6_hold_while_every_kind_of_retention_has_victims(
    exhaustive: bool, told: list[str]
) -> None:
    tally = crashes.enumerate_script(long_script, models="KO" if exhaustive else "K")
    told.append(f"long life: {tally.line()}; 0 violations")
    assert tally.states["K"] > 400


def test_a1_to_a6_hold_when_recovery_crashes_again(exhaustive: bool, told: list[str]) -> None:
    every = 24 if exhaustive else 80
    tally = crashes.enumerate_recovery(models="KO" if exhaustive else "K", every=every)
    told.append(f"crash during recovery: {tally.line()}; 0 violations")
    assert tally.points > 200


def test_a1_to_a4_hold_after_every_io_error(exhaustive: bool, told: list[str]) -> None:
    """Every call x {once, persistent} x {EIO, ENOSPC, short write}."""
    tally = crashes.run_faults(short_script, stride=1 if exhaustive else 17)
    told.append(f"I/O errors: {tally.line()}; 0 violations")
    assert tally.hit["publication"] > 20 and tally.hit["start"] > 3
