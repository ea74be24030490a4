"""The shape of a simulated run: sizes, sampler, periods; and the `RunSettings` made from it.

May import: `runtime.settings`, `model`, `durable`, `config`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import msgspec

from outlast.config.schema import Recipe
from outlast.durable.fingerprint import Fingerprint, Identities, fingerprint_of
from outlast.durable.restore import RestoreMode
from outlast.model.groups import RecoveryLevel
from outlast.model.plan import RunPlan
from outlast.model.sampler_base import Sampler
from outlast.model.sampler_kinds import InOrder, ReadyFirst, WeightFifo, Windowed
from outlast.ports import SamplingParams
from outlast.runtime.attempt import AttemptSettings
from outlast.runtime.checkpoint import CheckpointSettings
from outlast.runtime.rollout import RolloutSettings
from outlast.runtime.settings import RunSettings
from outlast.runtime.snapshot import SnapshotSettings
from outlast.runtime.store import RetentionSettings
from outlast.runtime.train import TrainSettings
from outlast.runtime.validation import ValidationSettings
from outlast.runtime.watchdog import WatchdogSettings
from outlast.testing.fake_environment import FakePrompts
from outlast.testing.oldest_first import OldestFirst

SamplerName = Literal["in_order", "weight_fifo", "ready_first", "windowed", "custom"]
STALL_S = 400.0
"""Virtual seconds without progress before the watchdog reports a deadlock (L4)."""


class RunShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a simulated run looks like. Times in virtual seconds; sizes in prompt groups."""

    prompts: int = 16
    """Items of the dataset."""
    epochs: int = 4
    siblings: int = 2
    """Generations per prompt."""
    groups_per_step: int = 2
    steps: int = 4
    """Target of the run."""
    sampler: SamplerName = "in_order"
    window: int = 1
    """Lookahead of in_order, staleness of the others."""
    over_sampling_ratio: float = 1.0
    freshest_first: bool = False
    level: Literal["prompt_group", "sibling", "token"] = "sibling"
    chunk_groups_min: int = 1
    capacity: int = 0
    """Permits; 0 takes what the sampler needs."""
    inflight: int = 64
    save_period: int = 1
    anchor_policy: Literal["exact", "replay"] = "exact"
    max_replay_steps: int = 8
    interval_s: float | None = 1.0
    """Between snapshot attempts; None takes none."""
    keep_latest_k: int = 2
    replace_dropped: bool = False
    min_step_batch_fraction: float = 0.9
    filter_zero_variance: bool = False
    deterministic: bool = False
    response_tokens: int = 8
    """Longest response."""
    rollout_timeout_s: float = 30.0
    infrastructure_attempts: int = 5
    data_attempts: int = 2
    grace_s: float = 25.0
    validation_period: int = -1
    """Steps between validations; 0 at start and end only, -1 none."""
    restore_mode: Literal["latest", "trainer_checkpoint"] = "latest"


SamplerFactory = Callable[[int], Sampler]
"""P prompts per step -> sampler."""


def sampler_of(shape: RunShape) -> Sampler:
    """The built-in sampler that the shape names; "custom" is `OldestFirst`."""
    P, window = shape.groups_per_step, shape.window
    if shape.sampler == "in_order":
        return InOrder(P, window)
    if shape.sampler == "weight_fifo":
        return WeightFifo(P, window)
    if shape.sampler == "ready_first":
        return ReadyFirst(P, window)
    if shape.sampler == "custom":
        return OldestFirst(P, window)
    return Windowed(
        P,
        window,
        over_sampling_ratio=shape.over_sampling_ratio,
        freshest_first=shape.freshest_first,
    )


@lru_cache(maxsize=1)
def fingerprint() -> Fingerprint:
    """One identity for all simulated runs."""
    parts = Identities(model="sim", tokenizer="sim", dataset="sim", environment="sim")
    return fingerprint_of(Recipe(), parts)


def settings_of(shape: RunShape, *, seed: int, sampler: SamplerFactory | None) -> RunSettings:
    """The settings of one life."""
    P = shape.groups_per_step
    made = sampler(P) if sampler is not None else sampler_of(shape)
    sampling = SamplingParams(max_new_tokens=shape.response_tokens)
    return RunSettings(
        plan=_plan(shape, seed=seed, capacity=shape.capacity or made.capacity_needed),
        sampler=lambda: made,
        fingerprint=fingerprint(),
        recipe_text=f"# simulated, seed {seed}\n",
        description=f"simulated {made.name}",
        restore_mode=RestoreMode(shape.restore_mode),
        fresh=False,
        take_over=False,
        checkpoints=CheckpointSettings(
            save_period=shape.save_period,
            replay=shape.anchor_policy == "replay",
            max_replay_steps=shape.max_replay_steps,
            applied_bytes_max=1 << 30,
        ),
        snapshots=SnapshotSettings(
            interval_s=shape.interval_s, failures_max=3, replay=shape.anchor_policy == "replay"
        ),
        retention=RetentionSettings(keep_latest_k=shape.keep_latest_k),
        grace_s=shape.grace_s,
        must_save_by_s=None,
        rollout=RolloutSettings(
            attempt=AttemptSettings(
                seed=seed,
                repeatable=shape.deterministic,
                sampling=sampling,
                timeout_s=shape.rollout_timeout_s,
            ),
            max_inflight_groups=shape.inflight,
            backoff_s=0.5,
            backoff_max_s=4.0,
            filter_zero_variance=shape.filter_zero_variance,
        ),
        train=TrainSettings(max_steps=shape.steps, chunk_groups_min=shape.chunk_groups_min),
        validation=_validation(shape, sampling),
        watchdog=WatchdogSettings(stall_timeout_s=STALL_S, abort=True, gauge_interval_s=20.0),
    )


def _plan(shape: RunShape, *, seed: int, capacity: int) -> RunPlan:
    return RunPlan(
        prompts_per_step=shape.groups_per_step,
        siblings=shape.siblings,
        capacity=capacity,
        level=lambda prompt: RecoveryLevel(shape.level),
        dataset=FakePrompts(shape.prompts).digest,
        dataset_size=shape.prompts,
        seed=seed,
        epochs=shape.epochs,
        infrastructure_attempts=shape.infrastructure_attempts,
        data_attempts=shape.data_attempts,
        replace_dropped=shape.replace_dropped,
        min_step_batch_fraction=shape.min_step_batch_fraction,
    )


def _validation(shape: RunShape, sampling: SamplingParams) -> ValidationSettings | None:
    if shape.validation_period < 0:
        return None
    return ValidationSettings(
        period=shape.validation_period, size=2, sampling=sampling, timeout_s=30.0
    )
