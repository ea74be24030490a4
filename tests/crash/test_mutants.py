"""Each omitted step of the publication protocol must break a law on some tree."""

from __future__ import annotations

import pytest

from outlast.testing.crash_fork_mutants import MAKING_MUTANTS, MakingMutant
from outlast.testing.crash_mutants import EQUIVALENT, MUTANTS, Mutant
from outlast.testing.crash_prefix_mutants import PREFIX_MUTANTS
from outlast.testing.crashes import run_making_mutant, run_mutant

SLOW = frozenset(
    {
        "trainer shards not synced when sealed",
        "no directory fsync before the marker",
        "nested directory not synced",
        "retention deletes an anchor in use",
        "consumption log synced after COMMITTED",
        "consumption log never synced",
        "bundled cut links instead of copying",
    }
)


@pytest.mark.parametrize(
    "mutant", (*MUTANTS, *PREFIX_MUTANTS), ids=lambda m: m.name.replace(" ", "-")
)
def test_mutant_is_killed(mutant: Mutant, exhaustive: bool, told: list[str]) -> None:
    if mutant.name in SLOW and not exhaustive:
        pytest.skip("takes seconds; `make crash` runs it")
    killed = run_mutant(mutant)
    told.append(f"{killed.law or 'SURVIVED'} after {killed.states:>6,} states: {mutant.name}")
    assert killed.law is not None, f"{mutant.name} survived {killed.states} states"


@pytest.mark.parametrize("mutant", MAKING_MUTANTS, ids=lambda m: m.name.replace(" ", "-"))
def test_mutant_of_forks_and_exports_is_killed(mutant: MakingMutant, told: list[str]) -> None:
    killed = run_making_mutant(mutant)
    told.append(f"{killed.law or 'SURVIVED'} after {killed.states:>6,} states: {mutant.name}")
    assert killed.law is not None, f"{mutant.name} survived {killed.states} states"


@pytest.mark.parametrize("mutant", EQUIVALENT, ids=lambda m: m.name.replace(" ", "-"))
def test_an_equivalent_mutant_breaks_no_law(mutant: Mutant, exhaustive: bool) -> None:
    if not exhaustive:
        pytest.skip("takes seconds; `make crash` runs it")
    assert run_mutant(mutant).law is None, "no longer equivalent: move it to MUTANTS"


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 15
