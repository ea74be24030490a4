"""Events as named series: one fold, read by TensorBoard, and by whatever else plots numbers.

Names follow the field (DESIGN 15). Series are dense: every event that feeds a family gives a value
to every member, zeros included, so that a missing line never has to be read as "it did not happen".
Counts are totals of this incarnation. The abscissa is the trainer version.
May import: `telemetry.events`, `model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from outlast.model.groups import DropReason, FailureKind
from outlast.telemetry.events import (
    AnyEvent,
    AttemptFailed,
    CheckpointPublished,
    Gauges,
    GroupDropped,
    IntervalChosen,
    Restored,
    ResultIgnored,
    SiblingSealed,
    SkipReason,
    SnapshotPublished,
    SnapshotSkipped,
    StepFinished,
    StepReplayed,
    ValidationFinished,
    WeightsServed,
)

PUBLISHED = "published"
OUTCOMES = (PUBLISHED, *(f"reason_{reason}" for reason in SkipReason))
"""Members of ``rollout/checkpoint_outcome/``."""


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series at a trainer version."""

    name: str
    step: int
    value: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A distribution over small integers at a trainer version."""

    name: str
    step: int
    values: tuple[int, ...]


Sample = Point | Histogram


class MetricsView:
    """Turns each event into the samples it gives. Pure: no clock, no I/O."""

    def __init__(self) -> None:
        self._step = 0
        self._counts: Counter[str] = Counter()
        self._tokens = 0
        self._siblings = 0

    def __call__(self, event: AnyEvent, /) -> tuple[Sample, ...]:
        """Samples of `event`, in a fixed order; empty for events that are only counted."""
        self._count(event)
        match event:
            case StepFinished():
                return tuple(self._finished(event))
            case SnapshotPublished():
                return (*self._points(_snapshot(event)), *self._outcome(PUBLISHED))
            case SnapshotSkipped():
                return self._outcome(f"reason_{event.reason}")
            case IntervalChosen():
                return self._points({"rollout/checkpoint/interval_seconds": event.interval_s})
            case Restored():
                self._step = event.trainer_version
                return self._points(_restored(event))
            case StepReplayed():
                self._step = event.step
                return self._points(_replayed(event))
            case CheckpointPublished():
                return self._points(_checkpoint(event))
            case Gauges():
                return self._points(_gauges(event))
            case ValidationFinished():
                return self._points(_validation(event))
            case WeightsServed():
                return self._points({"timing/weights/update_seconds": event.seconds})
            case _:
                return ()

    def _count(self, event: AnyEvent) -> None:
        match event:
            case SiblingSealed():
                self._tokens += event.tokens
                self._siblings += 1
            case AttemptFailed():
                self._counts[f"rollout/failures/{event.kind}"] += 1
            case ResultIgnored():
                self._counts["rollout/ignored_results"] += 1
            case GroupDropped():
                self._counts[f"rollout/dropped/{event.reason}"] += 1
            case _:
                pass

    def _points(self, values: Mapping[str, float]) -> tuple[Sample, ...]:
        return tuple(Point(name, self._step, float(value)) for name, value in values.items())

    def _finished(self, event: StepFinished) -> Iterator[Sample]:
        self._step = event.step
        train = {"groups": float(len(event.groups)), "chunks": float(len(event.chunks))}
        train |= event.metrics
        yield from self._points({f"train/{name}": value for name, value in train.items()})
        seconds = event.wait_s + event.train_s
        rate = 1.0 / seconds if seconds > 0 else 0.0
        yield from self._points(
            {
                "timing/train/step_seconds": event.train_s,
                "timing/train/wait_seconds": event.wait_s,
                "rollout/throughput/trained_groups_per_second": len(event.groups) * rate,
                "rollout/throughput/sealed_siblings_per_second": self._siblings * rate,
                "rollout/throughput/sealed_tokens_per_second": self._tokens * rate,
            }
        )
        self._tokens = self._siblings = 0
        lags = event.lags
        if lags:
            mean = sum(lags) / len(lags)
            yield from self._points(
                {"rollout/staleness/mean": mean, "rollout/staleness/max": max(lags)}
            )
            yield Histogram("rollout/staleness", self._step, lags)
        yield from self._points({name: self._counts[name] for name in _COUNTED})

    def _outcome(self, outcome: str) -> tuple[Sample, ...]:
        prefix = "rollout/checkpoint_outcome"
        self._counts[f"{prefix}/{outcome}"] += 1
        return self._points({f"{prefix}/{o}": self._counts[f"{prefix}/{o}"] for o in OUTCOMES})


_COUNTED = (
    *(f"rollout/dropped/{reason}" for reason in DropReason),
    *(f"rollout/failures/{kind}" for kind in FailureKind),
    "rollout/ignored_results",
)


def _snapshot(event: SnapshotPublished) -> dict[str, float]:
    timing = "timing/rollout_checkpoint"
    return {
        f"{timing}/total_save_seconds": event.hold_s + event.save_s + event.commit_s,
        # Without a native plane nothing waits for a fence; the series stays comparable.
        f"{timing}/barrier_wait_seconds": 0.0,
        f"{timing}/exclusive_hold_seconds": event.hold_s,
        f"{timing}/sidecar_save_seconds": event.save_s,
        f"{timing}/snapshot_commit_seconds": event.commit_s,
        "rollout/checkpoint/bytes_written": event.bytes_written,
        "rollout/checkpoint/bytes_total": event.bytes_total,
        "rollout/checkpoint/groups": event.groups,
        "rollout/checkpoint/rows": event.rows,
    }


def _restored(event: Restored) -> dict[str, float]:
    return {
        "timing/rollout_recovery/load_seconds": event.load_s,
        "timing/rollout_recovery/estimated_saved_seconds": event.estimated_saved_s,
        "rollout/recovered_tokens": event.tokens_reused + event.prefix_tokens_reused,
        "rollout/recovery/tokens_reused": event.tokens_reused,
        "rollout/recovery/prefix_tokens_reused": event.prefix_tokens_reused,
        "rollout/recovery/groups_reused": event.groups_reused,
        "rollout/recovery/siblings_reused": event.siblings_reused,
        "rollout/recovery/siblings_redispatched": event.siblings_redispatched,
        "rollout/recovery/attempts_superseded": event.attempts_superseded,
        "rollout/recovery/steps_to_replay": event.steps_to_replay,
        "rollout/recovery/candidates_rejected": len(event.rejected),
    }


def _replayed(event: StepReplayed) -> dict[str, float]:
    return {
        "timing/rollout_recovery/replay_step_seconds": event.seconds,
        "rollout/recovery/replay_differences": len(event.differences),
    }


def _checkpoint(event: CheckpointPublished) -> dict[str, float]:
    timing = "timing/trainer_checkpoint"
    return {
        f"{timing}/total_save_seconds": event.stage_s + event.write_s + event.commit_s,
        f"{timing}/stage_seconds": event.stage_s,
        f"{timing}/write_seconds": event.write_s,
        f"{timing}/commit_seconds": event.commit_s,
        "train/checkpoint/bytes": event.bytes,
    }


def _gauges(event: Gauges) -> dict[str, float]:
    values: dict[str, float] = {
        "rollout/at_risk_tokens": event.at_risk_tokens,
        "rollout/at_risk_seconds": event.at_risk_s,
        "rollout/throughput/tokens_per_second": event.tokens_per_s,
        "rollout/groups/open": event.open_groups,
        "rollout/groups/buffered": event.buffered_groups,
        "rollout/groups/claimed": event.claimed_groups,
        "rollout/inflight_siblings": event.inflight_siblings,
        "rollout/weight_lag": event.trainer_version - event.served_version,
    }
    if event.last_snapshot_age_s is not None:  # before the first snapshot there is no age
        values["rollout/checkpoint/age_seconds"] = event.last_snapshot_age_s
    return values


def _validation(event: ValidationFinished) -> dict[str, float]:
    return {
        "validation/reward": event.reward,
        "validation/prompts": event.prompts,
        "validation/response_tokens_mean": event.response_tokens_mean,
        "validation/version": event.version,
        "timing/validation/total_seconds": event.seconds,
    }
