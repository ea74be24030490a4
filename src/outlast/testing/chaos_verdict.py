"""What a chaos campaign is asked to do, and what it found.

May import: the blows, the judge and the lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.testing.chaos_blows import Kind
from outlast.testing.chaos_judge import Loss
from outlast.testing.chaos_lives import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to do. Times in seconds."""

    kills: int
    seed: int = 0
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = tuple(Kind)
    lineages_max: int = 1_000
    life_s: float | None = None
    """Typical time from the first dispatch to the blow's latest moment; None: learnt."""
    timeout_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One ended life, as the report counts it."""

    lineage: int
    life: int
    ended: Ended
    loss: Loss


@dataclass(slots=True)
class Verdict:
    """What a campaign found."""

    campaign: Campaign
    deaths: list[Death] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)
    """Lock to first dispatch of every life that restored something."""
    lives: int = 0
    finished: int = 0
    skipped: int = 0
    repeated: int = 0
    trained: int = 0
    siblings_reused: int = 0
    tokens_reused: int = 0
    prefix_tokens_reused: int = 0
    """Of unfinished siblings at level token: handed to the engine again, not decoded."""
    seconds: float = 0.0

    @property
    def broken(self) -> bool:
        """A lineage did not reach its end; more of the same would tell nothing new."""
        return bool(self.violations)

    @property
    def ok(self) -> bool:
        return not self.violations and len(self.deaths) >= self.campaign.kills
