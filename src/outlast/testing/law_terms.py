"""What the auditor judges by: bounds of the run, a tally of what happened, the broken law.

May import: `model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outlast.model.groups import GroupState
from outlast.model.ids import WeightVersion

FROZEN_MAX = 64
"""Copies of the shadow that are kept: more than any retention keeps cuts."""


STEPPED = (GroupState.APPLIED, GroupState.REPLAY)
RECENT_CUTS = 4
"""Segments of rows that were released since may still be on their way out."""


EngineState = Callable[[], tuple[WeightVersion | None, str, tuple[str, ...]]]
"""What the engine holds: the pair it was given, the weights, running requests of other lives."""


class LawBroken(AssertionError):
    """A law does not hold. The message begins with its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the laws need to know of the run's configuration."""

    siblings: int
    groups_per_step: int
    whole_groups: bool
    """Recovery level prompt_group."""
    keeps_tokens: bool
    """Recovery level token."""
    max_lag: int | None
    interval_s: float | None
    save_slack_s: float
    """Longest time that a save may take when nothing is wrong."""
    keep: int
    """Snapshots that retention keeps."""
    checkpoints_only: bool
    """Restore mode trainer_checkpoint."""
    replay: bool
    """Anchor policy replay: snapshots need no trainer checkpoint of their own step."""


@dataclass(slots=True)
class Tally:
    """What happened, for reports."""

    outcomes: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    lag_max: int = 0
    checks: int = 0
