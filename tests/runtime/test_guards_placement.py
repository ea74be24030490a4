"""One test per rule about where engines, trainer and rows live; see `test_guards`."""

from __future__ import annotations

import pytest

from outlast.runtime.guards import check_recipe
from tests.runtime.test_guards import lines, recipe

QUEUE = "data_plane.impl=transfer_queue"
EXACT = "rollout_checkpointing.anchor_policy=exact"


@pytest.mark.parametrize(
    ("overrides", "start"),
    [
        (
            ["generation.min_healthy_engines=3", "generation.num_engines=2"],
            "generation.min_healthy_engines: 3 can never be alive; required: <= "
            "generation.num_engines (2)",
        ),
        (["generation.vllm={seed: 1}"], "generation.vllm: seed does nothing with engine torch"),
        (
            ["generation.engine=vllm", "generation.num_engines=2"],
            "generation.num_engines: 2 vLLM engines do not fit into one process",
        ),
        (
            ["generation.placement=ray", "generation.weight_transfer=in_process"],
            "generation.weight_transfer: in_process reaches no other process",
        ),
        (
            ["training.backend=fsdp2", "generation.weight_transfer=in_process"],
            "generation.weight_transfer: in_process reaches no other process",
        ),
        (["generation.weight_transfer=ray"], "generation.weight_transfer: ray needs a cluster"),
        (["training.world_size=2"], "training.world_size: 2 does nothing with backend torch"),
        (["data_plane.storage_units=2"], "data_plane.storage_units: 2 does nothing with impl"),
        (["data_plane.checkpoint=native"], "data_plane.checkpoint: native is TransferQueue's own"),
        (
            [QUEUE, "data_plane.checkpoint=native"],
            "data_plane.checkpoint: native keeps no rows of applied steps; required: "
            "rollout_checkpointing.anchor_policy: exact",
        ),
        (
            [QUEUE, "data_plane.checkpoint=native", EXACT],
            "data_plane.timeout_s: 30 s of waiting for changes to pause would eat the last",
        ),
        (["ray.address=auto"], "ray.address: auto does nothing, this recipe runs in one process"),
    ],
)
def test_refused(overrides: list[str], start: str) -> None:
    (line,) = lines(*overrides)
    assert line.startswith(start)


def test_vllm_is_not_deterministic() -> None:
    found = lines(
        "generation.engine=vllm",
        "deterministic=true",
        "async_rl.sampler.name=in_order",
        "async_rl.sampler.lookahead=0",
        "async_rl.min_groups_for_streaming_train=32",
    )
    assert [line for line in found if line.startswith("deterministic: found generation.engine")]


@pytest.mark.parametrize(
    "overrides",
    [
        ["generation.num_engines=2"],
        ["generation.placement=ray", "generation.num_engines=4", "ray.address=auto"],
        ["training.backend=fsdp2", "training.world_size=2"],
        [QUEUE, "data_plane.storage_units=2"],
        [QUEUE, "data_plane.checkpoint=native", EXACT, "data_plane.timeout_s=10"],
        ["generation.engine=vllm", "generation.vllm={max_model_len: 512}"],
    ],
)
def test_what_is_legal_starts(overrides: list[str]) -> None:
    check_recipe(recipe(*overrides))
