"""Given-up prompts: the run's budgets, and what each step is owed or must do without.

Restart-facing: a restored step must neither wait for groups that were given up already nor forget
a replacement it is owed (known failure 60). May import: `plan`, `ids`, `cut`, `errors`.
"""

from __future__ import annotations

from outlast.errors import StallAbort
from outlast.model.cut import Cut
from outlast.model.ids import Step
from outlast.model.plan import RunPlan


class Budgets:
    """Counts of given-up prompts, for the run and per target step."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self.skipped = 0
        """Along the lineage."""
        self.consecutive = 0
        """Since the last commit."""
        self._shortfalls: dict[Step, int] = {}
        self._owed: dict[Step, int] = {}

    @classmethod
    def restored(cls, plan: RunPlan, cut: Cut) -> Budgets:
        """The counts of `cut`."""
        budgets = cls(plan)
        budgets.skipped, budgets.consecutive = cut.skipped_prompts, cut.consecutive_dropped
        budgets._shortfalls = {Step(int(step)): n for step, n in cut.shortfalls.items()}
        budgets._owed = {Step(int(step)): n for step, n in cut.owed.items()}
        return budgets

    @property
    def shortfalls(self) -> dict[str, int]:
        """Target step -> prompts it must do without (a copy, as a cut stores it)."""
        return {str(step): n for step, n in self._shortfalls.items()}

    @property
    def owed(self) -> dict[str, int]:
        """Target step -> replacements it is owed (a copy, as a cut stores it)."""
        return {str(step): n for step, n in self._owed.items()}

    def next_owed(self) -> Step | None:
        """The oldest step that is owed a replacement."""
        return min(self._owed, default=None)

    def owe(self, step: Step) -> None:
        """A later draw replaces a group of `step`."""
        self._owed[step] = self._owed.get(step, 0) + 1

    def pay(self, step: Step) -> None:
        """One replacement for `step` was drawn."""
        self._owed[step] -= 1
        if not self._owed[step]:
            del self._owed[step]

    def full(self, step: Step) -> int:
        """Groups that `step` waits for while there is data."""
        return self._plan.prompts_per_step - self._shortfalls.get(step, 0)

    def shrink(self, step: Step) -> None:
        """`step` does without one more prompt. Raises StallAbort below the smallest step."""
        self._shortfalls[step] = self._shortfalls.get(step, 0) + 1
        left, least = self.full(step), self._plan.step_groups_min
        if left < least:
            raise StallAbort(
                f"step {step} would shrink to {left} of {self._plan.prompts_per_step} groups; "
                f"min_step_batch_fraction requires {least}. Look at the failing prompts, or set "
                f"on_dropped_prompt: replace"
            )

    def step_done(self, step: Step) -> None:
        self._shortfalls.pop(step, None)

    def committed(self) -> None:
        """A group was committed: the streak of given-up prompts ends."""
        self.consecutive = 0

    def gave_up(self) -> None:
        """One more prompt was given up. Raises StallAbort when a run budget is spent."""
        plan = self._plan
        self.skipped += 1
        self.consecutive += 1
        if self.skipped > plan.max_skipped_prompts:
            raise StallAbort(
                f"{self.skipped} prompts were given up in this run, more than max_skipped_prompts "
                f"({plan.max_skipped_prompts}). `outlast audit` counts them by reason"
            )
        if self.consecutive > plan.max_consecutive_dropped_prompts:
            raise StallAbort(
                f"{self.consecutive} prompts in a row were given up, more than "
                f"max_consecutive_dropped_prompts ({plan.max_consecutive_dropped_prompts}): "
                f"something is wrong with every prompt. See the failures above"
            )
