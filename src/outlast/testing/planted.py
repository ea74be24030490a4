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
from outlast.testing.planted_recovery import RECOVERY_BUGS
from outlast.testing.planted_runtime import RUNTIME_BUGS

Bug = Callable[[], AbstractContextManager[None]]

PLANTED: dict[str, Bug] = {**MODEL_BUGS, **RUNTIME_BUGS, **RECOVERY_BUGS, **DURABLE_BUGS}


def _tokens_fail(plan: LineagePlan) -> bool:
    """Streams break off at level token."""
    return plan.shape.level == "token" and plan.engine.failure_share > 0


def _any(plan: LineagePlan) -> bool:
    return True


SUITS: dict[str, Callable[[LineagePlan], bool]] = {
    "filtered_credit_lost": lambda plan: plan.shape.filter_zero_variance,
    "restored_groups_without_permit": lambda plan: (
        plan.shape.sampler == "windowed" and any(life.capacity for life in plan.lives)
    ),
    "inflight_counts_as_sealed": lambda plan: plan.shape.level == "prompt_group",
    "skip_push_if_version_equal": lambda plan: plan.engine.survives,
    "engines_not_fenced": lambda plan: plan.engine.survives,
    "chunk_minimum_not_relaxed": lambda plan: plan.shape.chunk_groups_min > 1,
    "io_error_taken_for_corruption": lambda plan: any(
        fault.kind == "EIO" and fault.after_s == 0 and fault.skip > 10
        for life in plan.lives
        for fault in life.disk_faults
    ),
    "anchor_not_staged": lambda plan: plan.shape.save_period > 1 and plan.stage_s > 1,
    "prefix_of_a_superseded_attempt": _tokens_fail,
    "prefix_counted_twice": _tokens_fail,
    "prefix_lost_at_the_end": lambda plan: plan.shape.level == "token",
    "prefix_restored_for_a_neighbour": lambda plan: plan.shape.level == "token",
    "replay_in_another_order": lambda plan: (
        plan.shape.anchor_policy == "replay" and plan.shape.groups_per_step > 1
    ),
    "latest_follows_a_foreign_cut": lambda plan: any(
        life.restore_mode == "trainer_checkpoint" for life in plan.lives
    ),
}
"""Plans in which a bug can show at all, where that is rare."""


def hunt(name: str, *, seeds: int, start: int = 0) -> tuple[int, str] | None:
    """Run lineages under the planted bug: (how many until it was found, violation), or None.

    Only plans that suit the bug are run and counted.
    """
    ran, suits = 0, SUITS.get(name, _any)
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
