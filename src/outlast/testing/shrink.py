"""Make a failing plan smaller: drop lives and faults while the same law still breaks.

May import: `testing`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from outlast.testing.lineage import run_lineage
from outlast.testing.plan import LineagePlan
from outlast.testing.scripts import EngineProfile

Breaks = Callable[[LineagePlan], str | None]


def shrink(plan: LineagePlan, *, breaks: Breaks | None = None, tries: int = 200) -> LineagePlan:
    """The smallest plan found within `tries` runs that breaks the law that `plan` breaks."""
    judge = breaks or (lambda candidate: run_lineage(candidate).violation)
    law = _law(judge(plan))
    if law is None:
        return plan
    left, smaller = tries, True
    while smaller and left > 0:
        smaller = False
        for candidate in _candidates(plan):
            left -= 1
            if left <= 0:
                break
            if _law(judge(candidate)) == law:
                plan, smaller = candidate, True
                break
    return plan


def _law(violation: str | None) -> str | None:
    return None if violation is None else violation.split(":", 1)[0]


def _candidates(plan: LineagePlan) -> Iterator[LineagePlan]:
    """Plans that are one decision simpler."""
    change = msgspec.structs.replace
    for drop in range(len(plan.lives)):
        yield change(plan, lives=plan.lives[:drop] + plan.lives[drop + 1 :])
    if plan.trainer_faults:
        yield change(plan, trainer_faults={})
    if plan.poison or plan.unreadable:
        yield change(plan, poison=(), unreadable=())
    calm = EngineProfile(latency_s=plan.engine.latency_s, survives=plan.engine.survives)
    if plan.engine != calm:
        yield change(plan, engine=calm)
    for number, life in enumerate(plan.lives):
        plainer = change(life, disk_faults=(), power_cut=False, capacity=None)
        if plainer != life:
            lives = (*plan.lives[:number], plainer, *plan.lives[number + 1 :])
            yield change(plan, lives=lives)
    shape = plan.shape
    for field, value in (
        ("validation_period", -1),
        ("filter_zero_variance", False),
        ("inflight", 64),
        ("chunk_groups_min", 1),
        ("window", 0),
    ):
        if getattr(shape, field) != value:
            yield change(plan, shape=change(shape, **{field: value}))
    for field in ("steps", "groups_per_step", "siblings"):
        if getattr(shape, field) > 1:
            less = change(shape, **{field: getattr(shape, field) - 1})
            yield change(plan, shape=change(less, chunk_groups_min=1))
