"""What is done to a life of the real program: the kinds of blows, drawn from a seed.

May import: `cli.failpoints`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from outlast.cli.failpoints import FAILPOINTS


class Kind(StrEnum):
    """How a life is ended, or disturbed before it is ended."""

    TIMER = "timer"
    """SIGKILL at a random moment after the first dispatch."""
    EARLY = "early"
    """SIGKILL at a random moment of the start: imports, lock, verify, load, adoption."""
    FAILPOINT = "failpoint"
    """SIGKILL at a named failpoint."""
    TERM = "term"
    """SIGTERM at a random moment: must exit 75 inside the grace, with a named cut."""
    TERM_AT = "term_at"
    """SIGTERM at a named failpoint: the same promise."""
    TERM_KILL = "term_kill"
    """SIGTERM, and SIGKILL before the last snapshot may be out."""
    PAUSE = "pause"
    """SIGSTOP, SIGCONT, then SIGKILL."""
    DISK_FULL = "disk_full"
    """Snapshots meet a full disk (a failpoint), training goes on, then SIGKILL."""
    VOLUME_FULL = "volume_full"
    """The file system really is full for a while, then SIGKILL. On a volume of its own only."""
    POWER_CUT = "power_cut"
    """What the disk held at that instant is what stands. On a volume of its own only."""


ON_VOLUME = (Kind.VOLUME_FULL, Kind.POWER_CUT)
ORDINARY = tuple(kind for kind in Kind if kind not in ON_VOLUME)
"""What can be done anywhere, without root."""


FREQUENT = frozenset({"rollout.before_seal", "rollout.after_seal"})
"""Marks that every sibling passes; the others come a few times per step."""
FULL_AT = ("snapshot.cut", "snapshot.rows_saved", "snapshot.after_manifest")
STOPPING = tuple(name for name in FAILPOINTS if name.startswith("stop."))
STARTING = tuple(name for name in FAILPOINTS if name.startswith("start.") or "replay" in name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """One blow. Moments are fractions of a typical life, so that they fit every recipe."""

    kind: Kind
    at: float
    """When, as a fraction of the typical time after the first dispatch (of the start: EARLY)."""
    failpoint: str | None = None
    """Value of OUTLAST_FAILPOINT."""
    needs_term: bool = False
    """The failpoint lies behind a stop request, so one is sent at `at`."""
    pause_s: float = 0.0
    """PAUSE: seconds between SIGSTOP and SIGCONT. TERM_KILL: between SIGTERM and SIGKILL."""
    early: bool = False
    """It falls into the start: EARLY, and some power cuts."""
    spare_bytes: int = 0
    """VOLUME_FULL: what is left, so that a write fails in its middle."""

    @property
    def place(self) -> str | None:
        """Name of the failpoint."""
        return None if self.failpoint is None else self.failpoint.split(":")[0]

    @property
    def asks_to_stop(self) -> bool:
        """Whether it sends a SIGTERM."""
        return self.needs_term or self.kind in (Kind.TERM, Kind.TERM_AT, Kind.TERM_KILL)

    def __str__(self) -> str:
        return f"{self.kind} ({self.failpoint})" if self.failpoint else str(self.kind)


def draw_blow(rng: random.Random, kinds: Sequence[Kind]) -> Blow:
    """The next blow; equal seeds draw equal sequences."""
    kind, at = rng.choice(list(kinds)), rng.random()
    match kind:
        case Kind.FAILPOINT:
            place = rng.choice(list(FAILPOINTS))
            return Blow(
                kind=kind,
                at=at,
                failpoint=f"{place}:kill:{_hit(rng, place)}",
                needs_term=place in STOPPING,
            )
        case Kind.TERM_AT:
            place = rng.choice([name for name in FAILPOINTS if name not in STOPPING])
            return Blow(kind=kind, at=at, failpoint=f"{place}:term:{_hit(rng, place)}")
        case Kind.DISK_FULL:
            return Blow(kind=kind, at=at, failpoint=f"{rng.choice(FULL_AT)}:disk_full:1+")
        case Kind.PAUSE | Kind.TERM_KILL:
            return Blow(kind=kind, at=at, pause_s=rng.uniform(0.05, 0.8))
        case Kind.EARLY:
            return Blow(kind=kind, at=at, early=True)
        case Kind.VOLUME_FULL:
            return Blow(kind=kind, at=at, spare_bytes=rng.choice((0, rng.randint(0, 1 << 20))))
        case Kind.POWER_CUT:
            return _power_cut(rng, at=at)
        case _:
            return Blow(kind=kind, at=at)


def _power_cut(rng: random.Random, *, at: float) -> Blow:
    """Half of them at a named place, where the program stops itself; some during the start."""
    if rng.random() < 0.5:
        return Blow(kind=Kind.POWER_CUT, at=at, early=rng.random() < 0.2)
    place = rng.choice(list(FAILPOINTS))
    return Blow(
        kind=Kind.POWER_CUT,
        at=at,
        failpoint=f"{place}:stop:{_hit(rng, place)}",
        needs_term=place in STOPPING,
    )


def _hit(rng: random.Random, place: str) -> int:
    """Which hit; a start, a stop and the first weights happen once."""
    if place in FREQUENT:
        return rng.randint(1, 150)
    return 1 if place in STARTING + STOPPING else rng.randint(1, 2)
