"""Bugs planted into production code, to prove that the laws can find them.

Each is a context manager that patches one place; the simulator must report a violation within a
bounded number of seeds. A law that no planted bug can break would be a law that is not tested.
May import: `testing.planted_*`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from outlast.testing.lineage import run_lineage
from outlast.testing.plan import LineagePlan, draw_plan
from outlast.testing.planted_durable import DURABLE_BUGS
from outlast.testing.planted_model import MODEL_BUGS
from outlast.testing.planted_runtime import RUNTIME_BUGS

Bug = Callable[[], AbstractContextManager[None]]

PLANTED: dict[str, Bug] = {**MODEL_BUGS, **RUNTIME_BUGS, **DURABLE_BUGS}


def hunt(
    name: str, *, seeds: int, start: int = 0, suits: Callable[[LineagePlan], bool] = lambda _: True
) -> tuple[int, str] | None:
    """Run seeds under the planted bug: (lineages until it was found, violation), or None.

    Only plans that `suits` accepts are run and counted.
    """
    ran = 0
    with PLANTED[name]():
        for seed in range(start, start + 50 * seeds):
            plan = draw_plan(seed)
            if not suits(plan):
                continue
            ran += 1
            violation = run_lineage(plan).violation
            if violation is not None:
                return ran, violation
            if ran >= seeds:
                return None
    return None
