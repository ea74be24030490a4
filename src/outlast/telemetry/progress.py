"""The run as far as its events tell it: one fold, shown live by `train` and later by `status`.

Pure: no clock, no I/O; times are the wall stamps that came with the events.
May import: `telemetry.events`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from outlast.telemetry.events import (
    AnyEvent,
    AttemptFailed,
    CheckpointPublished,
    Gauges,
    GroupCommitted,
    GroupDropped,
    Restored,
    RunEnded,
    RunStarted,
    SiblingSealed,
    SnapshotPublished,
    SnapshotSkipped,
    StepFinished,
    StepReplayed,
    ValidationFinished,
    WeightsServed,
)

HISTORY_MAX = 240
"""Rewards kept for the sparkline."""
PACE_STEPS = 16
"""Steps whose mean duration predicts the time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """One finished optimizer step, as people read it."""

    step: int
    reward: float | None
    """The trainer's `reward_mean`, else the mean of the groups whose commits were seen."""
    tokens: int
    """Response tokens sealed since the step before."""
    groups: int
    lag_mean: float
    lag_max: int
    wait_s: float
    train_s: float
    metrics: dict[str, float]

    @property
    def seconds(self) -> float:
        return self.wait_s + self.train_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(slots=True)
class Progress:
    """Owner of the fold. Feed it events in order; read its fields."""

    started: RunStarted | None = None
    started_wall: float | None = None
    restored: Restored | None = None
    version: int = 0
    last_step: StepView | None = None
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))
    step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=PACE_STEPS))
    served: int | None = None
    gauges: Gauges | None = None
    gauges_wall: float | None = None
    snapshot: SnapshotPublished | None = None
    checkpoint: CheckpointPublished | None = None
    saved_wall: float | None = None
    """When the newest cut, snapshot or checkpoint, was published."""
    validations: list[ValidationFinished] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_since_save: Counter[str] = field(default_factory=Counter)
    ended: RunEnded | None = None
    last_wall: float | None = None
    _tokens: int = 0
    _committed: dict[int, float] = field(default_factory=dict)

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        """Take one event in."""
        self.last_wall = wall
        match event:
            case RunStarted():
                self.started, self.started_wall = event, wall
            case Restored():
                self.restored, self.version = event, event.trainer_version
            case StepFinished():
                self._finished(event)
            case StepReplayed():
                self.version = event.step
            case Gauges():
                self.gauges, self.gauges_wall = event, wall
                self.version, self.served = event.trainer_version, event.served_version
            case SnapshotPublished():
                self.snapshot, self.saved_wall = event, wall
                self.skipped_since_save.clear()
            case CheckpointPublished():
                self.checkpoint, self.saved_wall = event, wall
                self.skipped_since_save.clear()
            case ValidationFinished():
                self.validations.append(event)
            case WeightsServed():
                self.served = event.version
            case RunEnded():
                self.ended = event
            case _:
                self._count(event)

    @property
    def pace_s(self) -> float | None:
        """Mean seconds of the latest steps; None before the first."""
        return sum(self.step_seconds) / len(self.step_seconds) if self.step_seconds else None

    def _count(self, event: AnyEvent) -> None:
        match event:
            case SiblingSealed():
                self._tokens += event.tokens
            case GroupCommitted():
                self._committed[event.group] = event.reward_mean
            case GroupDropped():
                self.dropped[event.reason] += 1
                self._committed.pop(event.group, None)
            case AttemptFailed():
                self.failures[event.kind] += 1
            case SnapshotSkipped():
                self.skipped[event.reason] += 1
                self.skipped_since_save[event.reason] += 1
            case _:
                pass

    def _finished(self, event: StepFinished) -> None:
        known = [self._committed.pop(g) for g in event.groups if g in self._committed]
        mean = sum(known) / len(known) if known else None
        reward = event.metrics.get("reward_mean", mean)
        self.version = event.step
        self.last_step = StepView(
            step=event.step,
            reward=reward,
            tokens=self._tokens,
            groups=len(event.groups),
            lag_mean=sum(event.lags) / len(event.lags) if event.lags else 0.0,
            lag_max=max(event.lags, default=0),
            wait_s=event.wait_s,
            train_s=event.train_s,
            metrics=event.metrics,
        )
        self._tokens = 0
        self.step_seconds.append(self.last_step.seconds)
        if reward is not None:
            self.rewards.append(reward)
