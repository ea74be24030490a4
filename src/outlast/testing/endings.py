"""How a simulated life ended, and what a user reads about cuts on disk.

May import: `errors`, `runtime.controller`, `durable.manifest`, `testing.life`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.durable.manifest import CutState
from outlast.errors import OutlastError
from outlast.runtime.controller import Ending, Outcome
from outlast.testing.life import SimLife

GRACE_SLACK_S = 3.0
"""Virtual seconds for closing engines and files after the grace."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a life ended."""

    how: str
    """finished, nothing_to_do, preempted, killed, or the name of the error."""
    exit_code: int
    message: str


@dataclass(frozen=True, slots=True)
class SnapshotVerdict:
    """A cut on disk and what `outlast snapshots` would say about it."""

    name: str
    sequence: int | None
    trainer_version: int | None
    verdict: CutState
    reason: str


def judge_end(life: SimLife) -> Ended:
    if not life.pulse.alive:
        return Ended("killed", 137, life.pulse.cause)
    assert life.task is not None
    error = life.task.exception()
    if error is None:
        outcome: Outcome = life.task.result()
        code = 75 if outcome.ending is Ending.PREEMPTED else 0
        return Ended(outcome.ending.value, code, outcome.reason)
    if isinstance(error, OutlastError):
        return Ended(type(error).__name__, error.exit_code, str(error))
    return Ended(type(error).__name__, 1, _flat(error))


def _flat(error: BaseException) -> str:
    """The causes inside exception groups, in one line."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_flat(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"
