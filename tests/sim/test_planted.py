"""Every planted bug is found within a bounded number of lineages."""

from __future__ import annotations

import pytest

from outlast.testing.planted import PLANTED, hunt

SEEDS_MAX = 80


def test_there_are_enough_planted_bugs() -> None:
    assert len(PLANTED) >= 20


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_planted_bug_is_found(name: str) -> None:
    found = hunt(name, seeds=SEEDS_MAX)
    assert found is not None, f"{name} broke no law in {SEEDS_MAX} lineages"
    lineages, violation = found
    law = violation.split(":", 1)[0]
    assert law[0] in "ASL" and law[1:].isdigit(), violation
    assert 1 <= lineages <= SEEDS_MAX
