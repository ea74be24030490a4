"""The learning-rate schedule as a pure function of the step: nothing to save, nothing to drift.

May import: `config`, `errors`.
"""

from __future__ import annotations

import math

from outlast.config.schema import TrainingSection
from outlast.errors import RecipeError


def check_schedule(training: TrainingSection) -> None:
    """Raise RecipeError when the schedule has no room: it must end after its warm-up."""
    if training.schedule != "constant" and training.schedule_steps <= training.warmup_steps:
        raise RecipeError(
            f"training.schedule_steps: {training.schedule_steps} refused with schedule "
            f"{training.schedule}; required: more than warmup_steps ({training.warmup_steps})"
        )


def learning_rate(training: TrainingSection, step: int) -> float:
    """Learning rate of `step` (from 1): linear warm-up to the peak, then the schedule down to 0."""
    peak, warmup = training.learning_rate, training.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    if training.schedule == "constant":
        return peak
    done = min(1.0, (step - warmup) / (training.schedule_steps - warmup))
    if training.schedule == "linear":
        return peak * (1.0 - done)
    return peak * 0.5 * (1.0 + math.cos(math.pi * done))
