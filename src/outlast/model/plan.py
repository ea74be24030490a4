"""What the recipe fixes for the model: sizes, budgets and levels, as one frozen value.

May import: `groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from outlast.model.groups import FailureKind, PromptRef, RecoveryLevel, Sibling


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """P groups of `siblings` responses per step; `capacity` groups held at once."""

    prompts_per_step: int
    siblings: int
    capacity: int
    level: Callable[[PromptRef], RecoveryLevel]
    """Recovery level of a prompt, asked once when it is drawn."""
    dataset: str
    """Digest of the dataset."""
    dataset_size: int
    seed: int
    epochs: int
    infrastructure_attempts: int = 5
    data_attempts: int = 2
    replace_dropped: bool = False
    min_step_batch_fraction: float = 0.9
    max_skipped_prompts: int = 100
    max_consecutive_dropped_prompts: int = 16

    @property
    def step_groups_min(self) -> int:
        """Fewest groups an optimizer step may have."""
        return math.ceil(self.min_step_batch_fraction * self.prompts_per_step)

    def exhausted(self, siblings: Iterable[Sibling]) -> FailureKind | None:
        """The budget that one of a group's siblings has used up, if any."""
        for sibling in siblings:
            if sibling.data_failures >= self.data_attempts:
                return FailureKind.DATA
            if sibling.infrastructure_failures >= self.infrastructure_attempts:
                return FailureKind.INFRASTRUCTURE
        return None
