"""What the run was doing when it was struck, read from its tape or from the failpoint.

A tape names what has been done, not what is under way: training counts from the last gauges that
show claimed groups, so a phase is as fine as the cadence of the gauges. May import: `telemetry`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from outlast.telemetry import events
from outlast.testing.chaos_child import Taped


class Phase(StrEnum):
    """A state of the pumps."""

    START = "start"
    """Imports, lock, verification, loading, adoption: before the first request."""
    REPLAY = "replay of steps"
    GENERATION = "generation"
    """The trainer waits for groups."""
    TRAINING = "training"
    """A step is open: groups are claimed."""
    WEIGHTS = "weight sync"
    """A step is done and its weights are not served yet."""
    SNAPSHOT = "snapshot"
    CHECKPOINT = "trainer checkpoint"
    STOP = "stopping"


PLACES: Final = {
    "start": Phase.START,
    "replay": Phase.REPLAY,
    "rollout": Phase.GENERATION,
    "train": Phase.TRAINING,
    "weights": Phase.WEIGHTS,
    "checkpoint": Phase.CHECKPOINT,
    "snapshot": Phase.SNAPSHOT,
    "log": Phase.SNAPSHOT,
    "retain": Phase.SNAPSHOT,
    "stop": Phase.STOP,
}
"""First part of a failpoint's name -> phase."""


def phase_of(tape: Sequence[Taped], *, place: str | None, asked: bool) -> Phase:
    """The phase at the end of `tape`; `place`: failpoint reached; `asked`: to stop, by SIGTERM."""
    if place is not None:
        return PLACES[place.partition(".")[0]]
    if asked:
        return Phase.STOP
    said = [taped.event for taped in tape]
    if not any(isinstance(event, events.AttemptDispatched) for event in said):
        replayed = any(isinstance(event, events.StepReplayed) for event in said)
        return Phase.REPLAY if replayed else Phase.START
    for event in reversed(said):
        match event:
            case events.StepFinished():
                return Phase.WEIGHTS
            case events.Gauges(claimed_groups=claimed) if claimed:
                return Phase.TRAINING
            case events.Gauges() | events.WeightsServed():
                return Phase.GENERATION
            case _:
                continue
    return Phase.GENERATION
