"""One test per start-up rule (mission row 16): the refusal names numbers, key and remedy."""

from __future__ import annotations

import pytest

from outlast.config.load import load_recipe, parse_recipe
from outlast.config.schema import Recipe
from outlast.errors import RecipeError
from outlast.runtime.guards import check_recipe

P32 = ("algorithm.num_prompts_per_step=32",)


def recipe(*overrides: str) -> Recipe:
    return parse_recipe("", overrides, source="test").recipe


def lines(*overrides: str, has_reference: bool = True) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        check_recipe(recipe(*overrides), has_reference=has_reference)
    head, *rest = str(caught.value).split("\n  ")
    assert head == "the recipe is refused at start-up:"
    return rest


def test_defaults_and_the_built_in_demo_start_without_a_warning() -> None:
    assert check_recipe(Recipe(), cores=2) == ()
    assert check_recipe(load_recipe(None).recipe, cores=2) == ()


@pytest.mark.parametrize(
    ("sampler", "needed"),
    [
        (["name=in_order", "lookahead=0"], 32),
        (["name=in_order", "lookahead=3"], 128),
        (["name=weight_fifo", "max_staleness=2"], 96),
        (["name=ready_first", "max_staleness=0"], 32),
        (["name=windowed", "max_staleness=4"], 32),
    ],
)
def test_capacity_that_would_deadlock_is_refused_and_the_bound_itself_starts(
    sampler: list[str], needed: int
) -> None:
    overrides = [*P32, *(f"async_rl.sampler.{item}" for item in sampler)]
    (line,) = lines(*overrides, f"async_rl.max_buffered_rollouts={needed - 1}")
    name = sampler[0].removeprefix("name=")
    assert line == (
        f"async_rl.max_buffered_rollouts: {needed - 1} permits would deadlock {name}, which needs "
        f"{needed} with num_prompts_per_step 32; required: >= {needed}"
    )
    check_recipe(recipe(*overrides, f"async_rl.max_buffered_rollouts={needed}"))


def test_a_custom_sampler_must_be_loadable() -> None:
    (line,) = lines("async_rl.sampler.name=custom")
    assert line.startswith("async_rl.sampler.name is custom; sampler.target must name it")
    (line,) = lines("async_rl.sampler.name=custom", "async_rl.sampler.target=no_such:Thing")
    assert "sampler.target 'no_such:Thing' could not be built" in line


REFUSED = {
    "chunk above P": (
        ["async_rl.min_groups_for_streaming_train=33", *P32],
        "async_rl.min_groups_for_streaming_train: 33 groups are more than a step has; required: "
        "<= num_prompts_per_step (32)",
    ),
    "ready_first without correction": (
        ["async_rl.sampler.name=ready_first", "algorithm.importance_correction=false"],
        "async_rl.sampler.name: ready_first has no age bound and would train stale rollouts as if "
        "on-policy; required: algorithm.importance_correction: true",
    ),
    "target of a built-in": (
        ["async_rl.sampler.target=a:B"],
        "async_rl.sampler.target: does nothing with sampler windowed; required: name: custom",
    ),
    "args of a built-in": (
        ["async_rl.sampler.args.n=1"],
        "async_rl.sampler.args: does nothing with sampler windowed",
    ),
    "freshest_first": (
        ["async_rl.sampler.name=weight_fifo", "async_rl.sampler.freshest_first=true"],
        "async_rl.sampler.freshest_first: does nothing with sampler weight_fifo; required: name: "
        "windowed",
    ),
    "over_sampling_ratio": (
        ["async_rl.sampler.name=in_order", "async_rl.sampler.over_sampling_ratio=1.5"],
        "async_rl.sampler.over_sampling_ratio: does nothing with sampler in_order",
    ),
    "watchdog below the attempt": (
        ["async_rl.stall_watchdog.stall_timeout_s=600"],
        "async_rl.stall_watchdog.stall_timeout_s: 600 s would report rollouts that are merely "
        "slow; required: above async_rl.rollout_failure.rollout_timeout_s (600 s)",
    ),
    "reward beyond the attempt": (
        ["environment.reward_timeout_s=601"],
        "environment.reward_timeout_s: 601 s can never pass, the attempt ends before; required: "
        "<= async_rl.rollout_failure.rollout_timeout_s (600 s)",
    ),
    "back-off above its maximum": (
        ["async_rl.rollout_failure.backoff_s=31"],
        "async_rl.rollout_failure.backoff_s: 31 s would be cut at once; required: <= "
        "backoff_max_s (30 s)",
    ),
    "schedule_steps of a constant schedule": (
        ["training.schedule_steps=100"],
        "training.schedule_steps: 100 does nothing with schedule constant; required: 0, or",
    ),
    "snapshots without checkpointing": (
        ["checkpointing.enabled=false"],
        "rollout_checkpointing.snapshot_attempt_interval_s: 10.0: snapshots without trainer "
        "checkpoints have no anchor after step 1; required: checkpointing.enabled: true",
    ),
    "an automatic interval without a rate of kills": (
        ["rollout_checkpointing.snapshot_attempt_interval_s=auto"],
        "rollout_checkpointing.snapshot_attempt_interval_s: auto: the optimum depends on how often "
        "the run is killed; required: rollout_checkpointing.mtbf_s, such as 14400, or an interval",
    ),
    "snapshots without bundled state": (
        ["checkpointing.save_data_plane=false"],
        "rollout_checkpointing.snapshot_attempt_interval_s: 10.0 and checkpointing."
        "save_data_plane: false: a trainer checkpoint without its bundled rollout state can never "
        "be restored; required: save_data_plane: true",
    ),
    "checkpoints without bundled state": (
        [
            "checkpointing.save_data_plane=false",
            "rollout_checkpointing.snapshot_attempt_interval_s=null",
        ],
        "checkpointing.save_data_plane: false: a trainer checkpoint without",
    ),
    "snapshots without token capture": (
        ["token_capture.enabled=false"],
        "rollout_checkpointing.snapshot_attempt_interval_s: 10.0 and token_capture.enabled: "
        "false: rows without captured tokens can be neither trained nor restored; required: "
        "token_capture.enabled: true",
    ),
    "no token capture at all": (
        ["token_capture.enabled=false", "rollout_checkpointing.snapshot_attempt_interval_s=null"],
        "token_capture.enabled: false: rows without captured tokens",
    ),
    "must_save_by without checkpointing": (
        [
            "checkpointing.checkpoint_must_save_by=00:01:00:00",
            "checkpointing.enabled=false",
            "rollout_checkpointing.snapshot_attempt_interval_s=null",
        ],
        "checkpointing.checkpoint_must_save_by: 00:01:00:00 does nothing; required: "
        "checkpointing.enabled: true",
    ),
    "keep_top_k without a metric": (
        ["checkpointing.keep_top_k=3"],
        "checkpointing.keep_top_k: 3 does nothing without a metric; required: "
        "checkpointing.metric_name",
    ),
    "a metric without keep_top_k": (
        ["checkpointing.metric_name=train:loss"],
        "checkpointing.metric_name: train:loss does nothing with keep_top_k 0",
    ),
    "a metric of no source": (
        ["checkpointing.metric_name=loss", "checkpointing.keep_top_k=1"],
        "checkpointing.metric_name: found 'loss'; required: train:NAME or val:NAME",
    ),
    "a metric that is never measured": (
        ["checkpointing.metric_name=val:reward", "checkpointing.keep_top_k=1"],
        "checkpointing.metric_name: val:reward is never measured between steps; required: "
        "validation.enabled: true and validation.val_period: 1 or more",
    ),
    "a system prompt without chat": (
        ["environment.system_prompt=Think."],
        "environment.system_prompt: does nothing without a chat template",
    ),
    "a recovery level for nobody": (
        ["rollout_recovery.overrides.single_trun=sibling"],
        "rollout_recovery.overrides.single_trun: names neither the environment nor the dataset of "
        "this recipe, so it does nothing; required: single_turn or tiny",
    ),
    "a template without the prompt": (
        ["environment.template=Hello"],
        "environment.template: found 'Hello', which leaves the prompt out; required: {prompt}",
    ),
}


@pytest.mark.parametrize(("overrides", "start"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(overrides: list[str], start: str) -> None:
    (line,) = lines(*overrides)
    assert line.startswith(start)


def test_kl_without_a_reference_model() -> None:
    (line,) = lines("algorithm.kl_coef=0.1", has_reference=False)
    assert line.startswith("algorithm.kl_coef: 0.1 needs logprobs of the initial model")
    assert check_recipe(recipe("algorithm.kl_coef=0.1")) == ()


DETERMINISTIC = (
    "deterministic=true",
    *P32,
    "async_rl.sampler.name=in_order",
    "async_rl.sampler.lookahead=0",
    "async_rl.min_groups_for_streaming_train=32",
)


def test_deterministic_needs_an_order_that_no_timing_changes() -> None:
    check_recipe(recipe(*DETERMINISTIC))
    (line,) = lines(*DETERMINISTIC, "async_rl.sampler.lookahead=1")
    assert line.startswith("deterministic: found sampler in_order with lookahead 1")
    (line,) = lines(*DETERMINISTIC, "async_rl.sampler.name=windowed")
    assert "required: async_rl.sampler.name: in_order and lookahead: 0" in line
    (line,) = lines(*DETERMINISTIC, "async_rl.min_groups_for_streaming_train=8")
    assert line == (
        "deterministic: found chunks of 8, whose bounds depend on timing; required: "
        "async_rl.min_groups_for_streaming_train: 32 (num_prompts_per_step)"
    )
    (line,) = lines(*DETERMINISTIC, "training.device=cuda")
    assert line.endswith("required: training.device: cpu")


def test_every_violation_is_listed_at_once() -> None:
    found = lines(
        "async_rl.max_buffered_rollouts=1",
        "environment.reward_timeout_s=900",
        "token_capture.enabled=false",
    )
    assert [line.split(":")[0] for line in found] == [
        "async_rl.max_buffered_rollouts",
        "environment.reward_timeout_s",
        "rollout_checkpointing.snapshot_attempt_interval_s",
    ]


WARNED = {
    "nothing is saved": (
        ["checkpointing.enabled=false", "rollout_checkpointing.snapshot_attempt_interval_s=null"],
        "checkpointing.enabled is false: nothing is saved",
    ),
    "no snapshots": (
        ["rollout_checkpointing.snapshot_attempt_interval_s=null"],
        "rollout_checkpointing.snapshot_attempt_interval_s is null: a kill loses every rollout",
    ),
    "uncovered steps": (
        ["checkpointing.save_period=5", "rollout_checkpointing.anchor_policy=exact"],
        "checkpointing.save_period 5 under anchor_policy exact: 4 of 5 steps have no durable "
        "checkpoint",
    ),
    "no fallback": (
        ["rollout_checkpointing.keep_latest_k=1"],
        "rollout_checkpointing.keep_latest_k 1: if the newest snapshot is damaged",
    ),
    "interval beyond the end": (
        [
            "checkpointing.checkpoint_must_save_by=00:00:01:00",
            "rollout_checkpointing.snapshot_attempt_interval_s=60",
        ],
        "rollout_checkpointing.snapshot_attempt_interval_s 60 reaches beyond "
        "checkpoint_must_save_by (60 s): no periodic snapshot",
    ),
    "a step that cannot shrink": (
        [
            "algorithm.num_prompts_per_step=4",
            "async_rl.min_groups_for_streaming_train=4",
            "async_rl.sampler.name=in_order",
        ],
        "async_rl.rollout_failure.min_step_batch_fraction 0.9 of 4 prompts is 4: one given-up",
    ),
    "permits below in-flight": (
        ["async_rl.max_inflight_prompts=200"],
        "async_rl.max_inflight_prompts 200 exceeds max_buffered_rollouts 128: at most 128",
    ),
    "permits below the window": (
        ["async_rl.sampler.over_sampling_ratio=2.5"],
        "async_rl.max_buffered_rollouts 128 is below the 160 groups that windowed would admit",
    ),
    "threads": (
        ["generation.threads=2", "training.threads=3"],
        "threads: generation 2 + training 3 = 5 on 4 cores slow each other down",
    ),
}


@pytest.mark.parametrize(("overrides", "start"), WARNED.values(), ids=WARNED.keys())
def test_warned(overrides: list[str], start: str) -> None:
    (line,) = check_recipe(recipe(*overrides), cores=4)
    assert line.startswith(start)


def test_threads_are_counted_where_they_share_cores() -> None:
    crowded = recipe("generation.threads=2", "training.threads=3", "training.device=cuda")
    assert check_recipe(crowded, cores=4) == ()
    assert check_recipe(recipe("generation.threads=64"), cores=None) == ()
    (line,) = check_recipe(recipe("generation.threads=8", "training.device=cuda"), cores=4)
    assert line.startswith("threads: generation 8 = 8 on 4 cores")


def test_an_automatic_interval_starts_with_a_rate_of_kills() -> None:
    given = recipe(
        "rollout_checkpointing.snapshot_attempt_interval_s=auto",
        "rollout_checkpointing.mtbf_s=14400",
        "checkpointing.checkpoint_must_save_by='00:00:00:30'",
    )
    assert check_recipe(given, cores=2) == ()
