"""Start-up guards: combinations that would deadlock, or silently do nothing, are refused first.

`check_recipe` lists every violated rule at once with its numbers (mission row 16; known failures
57, 96-98, 107, 108, 111-115); what is legal but costs something comes back as warnings.
One page of rules on purpose: each function holds those of one section of the recipe.

Capacity. A group holds a permit from admission until its step is applied, so a step needs P
permits of its own; a sampler that hands out whole windows in order needs the window's
(DESIGN 5, `capacity_needed`). That suffices after a restart as well: restored groups always get
permits, a chunk never asks for more groups than its step still misses, and those are among the
holders, so no P + chunk - 1 is needed here (known failure 57 claimed permits apart from the step).
May import: `config`, `model.samplers`, `errors`, `guards_placement`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from outlast.config.schema import Recipe
from outlast.errors import RecipeError
from outlast.model.sampler_base import Sampler
from outlast.model.sampler_kinds import Windowed
from outlast.model.samplers import build_sampler
from outlast.runtime.guards_placement import placement


def check_recipe(
    recipe: Recipe, *, cores: int | None = None, has_reference: bool = True
) -> tuple[str, ...]:
    """Refuse what must not start; return warnings about what will cost something.

    `cores`: CPU cores of this machine, if known. `has_reference`: whether the trainer can give
    logprobs of the initial model. Raises RecipeError that lists every violated rule.
    """
    wrong = [
        *_capacity(recipe),
        *_sampler(recipe),
        *_deterministic(recipe),
        *_deadlines(recipe),
        *_algorithm(recipe, has_reference=has_reference),
        *_persistence(recipe),
        *_retention(recipe),
        *_dead_keys(recipe),
        *_recovery(recipe),
        *placement(recipe),
    ]
    if wrong:
        raise RecipeError("\n  ".join(["the recipe is refused at start-up:", *wrong]))
    return (*_costs(recipe), *_crowding(recipe, cores))


def _built(recipe: Recipe) -> Sampler | str:
    try:
        return build_sampler(recipe.async_rl.sampler, recipe.algorithm.num_prompts_per_step)
    except RecipeError as error:
        return str(error)


def _capacity(recipe: Recipe) -> Iterator[str]:
    held, sampler = recipe.async_rl.max_buffered_rollouts, _built(recipe)
    if isinstance(sampler, str):
        yield f"async_rl.{sampler}"
    elif held < sampler.capacity_needed:
        prompts = recipe.algorithm.num_prompts_per_step
        yield (
            f"async_rl.max_buffered_rollouts: {held} permits would deadlock {sampler.name}, which "
            f"needs {sampler.capacity_needed} with num_prompts_per_step {prompts}; required: "
            f">= {sampler.capacity_needed}"
        )


def _sampler(recipe: Recipe) -> Iterator[str]:
    section, prompts = recipe.async_rl.sampler, recipe.algorithm.num_prompts_per_step
    chunk = recipe.async_rl.min_groups_for_streaming_train
    if chunk > prompts:
        yield (
            f"async_rl.min_groups_for_streaming_train: {chunk} groups are more than a step has; "
            f"required: <= num_prompts_per_step ({prompts})"
        )
    if section.name == "ready_first" and not recipe.algorithm.importance_correction:
        yield (
            "async_rl.sampler.name: ready_first has no age bound and would train stale rollouts "
            "as if on-policy; required: algorithm.importance_correction: true"
        )
    if section.name != "custom" and (section.target or section.args):
        yield (
            f"async_rl.sampler.{'target' if section.target else 'args'}: does nothing with "
            f"sampler {section.name}; required: name: custom, or leave it out"
        )
    if section.name != "windowed" and (section.freshest_first or section.over_sampling_ratio != 1):
        key = "freshest_first" if section.freshest_first else "over_sampling_ratio"
        yield (
            f"async_rl.sampler.{key}: does nothing with sampler {section.name}; required: "
            "name: windowed, or leave it out"
        )


def _deterministic(recipe: Recipe) -> Iterator[str]:
    if not recipe.deterministic:
        return
    section, prompts = recipe.async_rl.sampler, recipe.algorithm.num_prompts_per_step
    chunk = recipe.async_rl.min_groups_for_streaming_train
    if (section.name, section.lookahead) != ("in_order", 0):
        yield (
            f"deterministic: found sampler {section.name} with lookahead {section.lookahead}, "
            "whose order depends on timing; required: async_rl.sampler.name: in_order and "
            "lookahead: 0"
        )
    if chunk != prompts:
        yield (
            f"deterministic: found chunks of {chunk}, whose bounds depend on timing; required: "
            f"async_rl.min_groups_for_streaming_train: {prompts} (num_prompts_per_step)"
        )
    if recipe.training.device != "cpu":
        yield (
            f"deterministic: found training.device {recipe.training.device}; bits repeat only on "
            "cpu; required: training.device: cpu"
        )


def _deadlines(recipe: Recipe) -> Iterator[str]:
    failure, reward = recipe.async_rl.rollout_failure, recipe.environment.reward_timeout_s
    attempt, stall = failure.rollout_timeout_s, recipe.async_rl.stall_watchdog.stall_timeout_s
    if stall <= attempt:
        yield (
            f"async_rl.stall_watchdog.stall_timeout_s: {stall:g} s would report rollouts that are "
            f"merely slow; required: above async_rl.rollout_failure.rollout_timeout_s "
            f"({attempt:g} s)"
        )
    if reward > attempt:
        yield (
            f"environment.reward_timeout_s: {reward:g} s can never pass, the attempt ends before; "
            f"required: <= async_rl.rollout_failure.rollout_timeout_s ({attempt:g} s)"
        )
    if failure.backoff_s > failure.backoff_max_s:
        yield (
            f"async_rl.rollout_failure.backoff_s: {failure.backoff_s:g} s would be cut at once; "
            f"required: <= backoff_max_s ({failure.backoff_max_s:g} s)"
        )


def _algorithm(recipe: Recipe, *, has_reference: bool) -> Iterator[str]:
    if recipe.algorithm.kl_coef > 0 and not has_reference:
        yield (
            f"algorithm.kl_coef: {recipe.algorithm.kl_coef:g} needs logprobs of the initial "
            "model, and this trainer gives none; required: 0, or a trainer with a reference model"
        )
    training = recipe.training
    if training.schedule == "constant" and training.schedule_steps:
        yield (
            f"training.schedule_steps: {training.schedule_steps} does nothing with schedule "
            "constant; required: 0, or schedule: linear or cosine"
        )


def _persistence(recipe: Recipe) -> Iterator[str]:
    checkpointing = recipe.checkpointing
    interval = recipe.rollout_checkpointing.snapshot_attempt_interval_s
    snapshots = f"rollout_checkpointing.snapshot_attempt_interval_s: {interval}"
    if interval is not None and not checkpointing.enabled:
        yield (
            f"{snapshots}: snapshots without trainer checkpoints have no anchor after step 1; "
            "required: checkpointing.enabled: true, or an interval of null"
        )
    if interval == "auto" and recipe.rollout_checkpointing.mtbf_s is None:
        yield (
            f"{snapshots}: the optimum depends on how often the run is killed; required: "
            "rollout_checkpointing.mtbf_s, such as 14400, or an interval in seconds"
        )
    if checkpointing.enabled and not checkpointing.save_data_plane:
        kept = f"{snapshots} and " if interval is not None else ""
        yield (
            f"{kept}checkpointing.save_data_plane: false: a trainer checkpoint without its bundled "
            "rollout state can never be restored; required: save_data_plane: true"
        )
    if not recipe.token_capture.enabled:
        kept = f"{snapshots} and " if interval is not None else ""
        yield (
            f"{kept}token_capture.enabled: false: rows without captured tokens can be neither "
            "trained nor restored; required: token_capture.enabled: true"
        )
    if checkpointing.checkpoint_must_save_by and not checkpointing.enabled:
        yield (
            f"checkpointing.checkpoint_must_save_by: {checkpointing.checkpoint_must_save_by} does "
            "nothing; required: checkpointing.enabled: true, or leave it out"
        )


def _retention(recipe: Recipe) -> Iterator[str]:
    best, metric = recipe.checkpointing.keep_top_k, recipe.checkpointing.metric_name
    if best and metric is None:
        yield (
            f"checkpointing.keep_top_k: {best} does nothing without a metric; required: "
            "checkpointing.metric_name such as train:reward_mean, or keep_top_k: 0"
        )
    if metric is None:
        return
    if not best:
        yield (
            f"checkpointing.metric_name: {metric} does nothing with keep_top_k 0; required: "
            "checkpointing.keep_top_k: 1 or more, or leave it out"
        )
    source, colon, name = metric.partition(":")
    if source not in ("train", "val") or not colon or not name:
        yield f"checkpointing.metric_name: found {metric!r}; required: train:NAME or val:NAME"
    elif source == "val" and not (recipe.validation.enabled and recipe.validation.val_period):
        yield (
            f"checkpointing.metric_name: {metric} is never measured between steps; required: "
            "validation.enabled: true and validation.val_period: 1 or more"
        )


def _dead_keys(recipe: Recipe) -> Iterator[str]:
    environment = recipe.environment
    if environment.system_prompt is not None and not environment.chat:
        yield (
            "environment.system_prompt: does nothing without a chat template; required: "
            "environment.chat: true, or leave it out"
        )
    if not environment.chat and "{prompt}" not in environment.template:
        yield (
            f"environment.template: found {environment.template!r}, which leaves the prompt out; "
            "required: {prompt} somewhere in it"
        )


def _recovery(recipe: Recipe) -> Iterator[str]:
    known = (recipe.environment.kind, recipe.dataset.name or recipe.dataset.source)
    for name in recipe.rollout_recovery.overrides:
        if name not in known:
            yield (
                f"rollout_recovery.overrides.{name}: names neither the environment nor the dataset "
                f"of this recipe, so it does nothing; required: {known[0]} or {known[1]}"
            )


def _costs(recipe: Recipe) -> Iterator[str]:
    checkpointing, snapshots = recipe.checkpointing, recipe.rollout_checkpointing
    period, interval = checkpointing.save_period, snapshots.snapshot_attempt_interval_s
    if not checkpointing.enabled:
        yield "checkpointing.enabled is false: nothing is saved, and a restart begins anew"
    elif interval is None:
        yield (
            "rollout_checkpointing.snapshot_attempt_interval_s is null: a kill loses every "
            "rollout since the last trainer checkpoint"
        )
    elif period > 1 and snapshots.anchor_policy == "exact":
        yield (
            f"checkpointing.save_period {period} under anchor_policy exact: {period - 1} of "
            f"{period} steps have no durable checkpoint, and snapshots are skipped during them "
            "(missing_trainer_anchor); save_period 1 covers every step"
        )
    if interval is not None and snapshots.keep_latest_k == 1:
        yield (
            "rollout_checkpointing.keep_latest_k 1: if the newest snapshot is damaged there is no "
            "older one; 2 keeps a fallback"
        )
    save_by = checkpointing.must_save_by_s
    if isinstance(interval, float) and save_by is not None and interval >= save_by:
        yield (
            f"rollout_checkpointing.snapshot_attempt_interval_s {interval:g} reaches beyond "
            f"checkpoint_must_save_by ({save_by:g} s): no periodic snapshot will be attempted"
        )
    prompts, failure = recipe.algorithm.num_prompts_per_step, recipe.async_rl.rollout_failure
    smallest = math.ceil(failure.min_step_batch_fraction * prompts)
    sampler = recipe.async_rl.sampler
    if sampler.name == "in_order" and failure.on_dropped_prompt == "shrink" and smallest == prompts:
        yield (
            f"async_rl.rollout_failure.min_step_batch_fraction {failure.min_step_batch_fraction:g} "
            f"of {prompts} prompts is {smallest}: one given-up prompt ends the run"
        )


def _crowding(recipe: Recipe, cores: int | None) -> Iterator[str]:
    inflight, permits = recipe.async_rl.max_inflight_prompts, recipe.async_rl.max_buffered_rollouts
    if inflight > permits:
        yield (
            f"async_rl.max_inflight_prompts {inflight} exceeds max_buffered_rollouts {permits}: "
            f"at most {permits} groups will be in flight"
        )
    sampler = _built(recipe)
    if isinstance(sampler, Windowed) and sampler.population(behind=0) > permits:
        yield (
            f"async_rl.max_buffered_rollouts {permits} is below the "
            f"{sampler.population(behind=0)} groups that windowed would admit: permits, not the "
            "window, bound how far generation runs ahead"
        )
    if recipe.ray.address is not None:  # on machines that this one knows nothing of
        return
    generation, training = recipe.generation, recipe.training
    threads = {
        "generation": generation.threads * generation.num_engines,
        "training": training.threads * training.world_size,
    }
    if training.device != "cpu":
        del threads["training"]
    total = sum(threads.values())
    if cores is not None and total > cores:
        each = " + ".join(f"{name} {count}" for name, count in threads.items())
        yield f"threads: {each} = {total} on {cores} cores slow each other down"
