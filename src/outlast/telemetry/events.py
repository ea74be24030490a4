"""The events of a run. Every number that Outlast shows comes from one of these.

Durations in seconds, sizes in bytes. Observation never changes semantics: emitting is synchronous,
in memory, and cannot fail the run. May import: `model`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class SkipReason(StrEnum):
    """Why a snapshot attempt published nothing. Series are dense over all of these."""

    NO_MUTATIONS = "no_mutations"
    MISSING_TRAINER_ANCHOR = "missing_trainer_anchor"
    DISK_FULL = "disk_full"
    SAVE_FAILED = "save_failed"


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; the class name is the tag."""


class RunStarted(Event, frozen=True, kw_only=True, tag=True):
    run: str
    incarnation: int
    run_dir: str
    recipe: str
    """Short description: model, dataset, sampler."""
    steps_target: int


class Restored(Event, frozen=True, kw_only=True, tag=True):
    """The restore report of DESIGN 12."""

    anchor: str
    snapshot: str | None
    sequence: int | None
    age_s: float | None
    trainer_version: int
    steps_to_replay: int
    groups_reused: int
    """Groups with every sibling sealed, back in the buffer or awaiting group work."""
    siblings_reused: int
    """Sealed siblings that are not generated again, in all groups."""
    tokens_reused: int
    """Of sealed siblings."""
    prefix_tokens_reused: int
    """Of unfinished siblings at level token: decoding goes on behind them."""
    attempts_superseded: int
    siblings_redispatched: int
    rejected: tuple[tuple[str, str], ...]
    """(cut, reason) of each newer candidate that was not used."""
    load_s: float
    estimated_saved_s: float
    """Generation time that reuse saves, at the mean seconds per token of the earlier life."""


class GroupsAdmitted(Event, frozen=True, kw_only=True, tag=True):
    groups: tuple[int, ...]
    target_step: int | None


class AttemptDispatched(Event, frozen=True, kw_only=True, tag=True):
    key: str
    version: int
    prefix_tokens: int
    """Handed to the engine instead of being decoded again."""


class SiblingSealed(Event, frozen=True, kw_only=True, tag=True):
    key: str
    tokens: int
    reward: float
    versions: tuple[int, int]
    """Minimum and maximum weight version."""
    seconds: float


class AttemptFailed(Event, frozen=True, kw_only=True, tag=True):
    key: str
    kind: str
    cause: str


class ResultIgnored(Event, frozen=True, kw_only=True, tag=True):
    """A late, duplicate or foreign result that changed nothing (S3)."""

    key: str
    verdict: str


class GroupCommitted(Event, frozen=True, kw_only=True, tag=True):
    group: int
    reward_mean: float
    tokens: int


class GroupDropped(Event, frozen=True, kw_only=True, tag=True):
    group: int
    reason: str
    lent: int | None = None
    """The finished group of a later step that takes its place."""


class StepFinished(Event, frozen=True, kw_only=True, tag=True):
    step: int
    groups: tuple[int, ...]
    chunks: tuple[int, ...]
    metrics: dict[str, float]
    lags: tuple[int, ...]
    """Trainer version minus w of each group, in training order."""
    wait_s: float
    """Time in which the trainer had nothing to do."""
    train_s: float


class StepReplayed(Event, frozen=True, kw_only=True, tag=True):
    """A step of an earlier life was executed again from stored rows."""

    step: int
    metrics: dict[str, float]
    differences: dict[str, tuple[float, float]]
    """Scalars that differ beyond tolerance: name -> (recorded, replayed)."""
    seconds: float


class WeightsServed(Event, frozen=True, kw_only=True, tag=True):
    version: int
    seconds: float


class CheckpointPublished(Event, frozen=True, kw_only=True, tag=True):
    version: int
    sequence: int
    bytes: int
    stage_s: float
    write_s: float
    commit_s: float


class SnapshotPublished(Event, frozen=True, kw_only=True, tag=True):
    id: str
    sequence: int
    trainer_version: int
    bytes_written: int
    """New bytes: linked segments of earlier saves are not counted."""
    bytes_total: int
    groups: int
    rows: int
    hold_s: float
    """Time the event loop was held by the cut."""
    save_s: float
    commit_s: float
    final: bool


class SnapshotSkipped(Event, frozen=True, kw_only=True, tag=True):
    reason: SkipReason
    detail: str = ""


class IntervalChosen(Event, frozen=True, kw_only=True, tag=True):
    """`snapshot_attempt_interval_s: auto` follows what snapshots cost."""

    interval_s: float
    cost_s: float
    """Mean seconds from cut to acknowledgement of the latest snapshots."""


class ValidationFinished(Event, frozen=True, kw_only=True, tag=True):
    version: int
    reward: float
    prompts: int
    seconds: float
    response_tokens_mean: float


class Gauges(Event, frozen=True, kw_only=True, tag=True):
    """State of the run at a moment, for the live display and `status`."""

    trainer_version: int
    served_version: int
    open_groups: int
    buffered_groups: int
    claimed_groups: int
    inflight_siblings: int
    tokens_per_s: float
    generated_tokens: int = 0
    """Decoded by this life so far, what was lost to failed attempts included."""
    last_snapshot_age_s: float | None
    at_risk_tokens: int
    """Lost if the controller were killed now."""
    at_risk_s: float


class Stalled(Event, frozen=True, kw_only=True, tag=True):
    seconds: float
    waiting: tuple[tuple[str, str], ...]
    """(pump, what it waits for)."""


class Warned(Event, frozen=True, kw_only=True, tag=True):
    message: str


class RunEnded(Event, frozen=True, kw_only=True, tag=True):
    reason: str
    trainer_version: int
    last_cut: str | None


AnyEvent = (
    RunStarted
    | Restored
    | GroupsAdmitted
    | AttemptDispatched
    | SiblingSealed
    | AttemptFailed
    | ResultIgnored
    | GroupCommitted
    | GroupDropped
    | StepFinished
    | StepReplayed
    | WeightsServed
    | CheckpointPublished
    | SnapshotPublished
    | SnapshotSkipped
    | IntervalChosen
    | ValidationFinished
    | Gauges
    | Stalled
    | Warned
    | RunEnded
)
"""Closed union: a sink that decodes a telemetry file knows every case."""
