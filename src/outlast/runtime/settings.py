"""What the recipe fixes for the runtime, as plain values: the runtime never reads the recipe.

May import: the settings of the pumps, `model`, `durable`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from outlast.durable.fingerprint import Fingerprint
from outlast.durable.restore import RestoreMode
from outlast.model.plan import RunPlan
from outlast.model.sampler_base import Sampler
from outlast.runtime.checkpoint import CheckpointSettings
from outlast.runtime.rollout import RolloutSettings
from outlast.runtime.snapshot import SnapshotSettings
from outlast.runtime.store import RetentionSettings
from outlast.runtime.train import TrainSettings
from outlast.runtime.validation import ValidationSettings
from outlast.runtime.watchdog import WatchdogSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """One life's settings. Times in seconds."""

    plan: RunPlan
    sampler: Callable[[], Sampler]
    fingerprint: Fingerprint
    recipe_text: str
    """Resolved recipe as it is saved: secrets and environment interpolations unresolved."""
    description: str
    """One line for people: model, dataset, sampler."""
    restore_mode: RestoreMode
    fresh: bool
    take_over: bool
    checkpoints: CheckpointSettings
    snapshots: SnapshotSettings
    retention: RetentionSettings
    grace_s: float
    must_save_by_s: float | None
    rollout: RolloutSettings
    train: TrainSettings
    validation: ValidationSettings | None
    watchdog: WatchdogSettings
