"""What a chaos campaign is asked to do, and what it found.

May import: the blows, the judge and the lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.testing.chaos_blows import ORDINARY, Kind
from outlast.testing.chaos_judge import Loss
from outlast.testing.chaos_lives import Ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What to do. Times in seconds."""

    kills: int
    """Lives to end by blows of `kinds`."""
    power_cuts: int = 0
    """Lives to end by a power cut, beside them."""
    seed: int = 0
    recipe: str | None = None
    overrides: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ORDINARY
    volume_bytes: int = 512 << 20
    """Size of the file system that a run gets to cut or to fill; its image is sparse."""
    file_systems: tuple[str, ...] = ()
    """Kinds that lineages take in turn; none named: all that can be made here."""
    lineages_max: int = 1_000
    life_s: float | None = None
    """Typical time from the first dispatch to the blow's latest moment; None: learnt."""
    timeout_s: float = 3600.0
    to_the_end: bool = True
    """Let the last run finish; else it is asked to stop and audited as it stands."""


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
    """Runs that reached their target."""
    audited: int = 0
    skipped: int = 0
    repeated: int = 0
    trained: int = 0
    siblings_reused: int = 0
    tokens_reused: int = 0
    prefix_tokens_reused: int = 0
    """Of unfinished siblings at level token: handed to the engine again, not decoded."""
    seconds: float = 0.0
    untested: list[str] = field(default_factory=list)
    """What was asked for and could not be done here."""
    orphans: list[str] = field(default_factory=list)
    """Processes that outlived the life that had started them; they were ended."""

    @property
    def cuts(self) -> int:
        """Deaths by a power cut."""
        return sum(death.ended.cut is not None for death in self.deaths)

    @property
    def kills(self) -> int:
        """Deaths by anything else."""
        return len(self.deaths) - self.cuts

    @property
    def kills_left(self) -> int:
        return max(0, self.campaign.kills - self.kills)

    @property
    def cuts_left(self) -> int:
        return max(0, self.campaign.power_cuts - self.cuts)

    @property
    def complete(self) -> bool:
        """Whether as many lives were ended as asked for."""
        return not self.kills_left and not self.cuts_left

    @property
    def broken(self) -> bool:
        """A lineage did not reach its end; more of the same would tell nothing new."""
        return bool(self.violations)

    @property
    def ok(self) -> bool:
        return not self.violations and self.complete
