"""Start-up guards about where engines, trainer and rows live. See `guards`.

May import: `config`.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.config.schema import Recipe


def placement(recipe: Recipe) -> Iterator[str]:
    """Violated rules of the sections generation, training, data_plane and ray."""
    yield from _engines(recipe)
    yield from _transfer(recipe)
    yield from _trainer(recipe)
    yield from _plane(recipe)
    if recipe.ray.address is not None and not uses_ray(recipe):
        yield (
            f"ray.address: {recipe.ray.address} does nothing, this recipe runs in one process; "
            "required: generation.placement: ray, training.backend: fsdp2 or data_plane.impl: "
            "transfer_queue, or leave it out"
        )


def uses_ray(recipe: Recipe) -> bool:
    """Whether anything of the run lives on a Ray cluster."""
    return (
        recipe.generation.placement == "ray"
        or recipe.training.backend == "fsdp2"
        or recipe.data_plane.impl == "transfer_queue"
    )


def _engines(recipe: Recipe) -> Iterator[str]:
    generation = recipe.generation
    if generation.min_healthy_engines > generation.num_engines:
        yield (
            f"generation.min_healthy_engines: {generation.min_healthy_engines} can never be alive; "
            f"required: <= generation.num_engines ({generation.num_engines})"
        )
    if generation.vllm and generation.engine != "vllm":
        yield (
            f"generation.vllm: {', '.join(sorted(generation.vllm))} does nothing with engine "
            f"{generation.engine}; required: generation.engine: vllm, or leave it out"
        )
    vllm, here = generation.engine == "vllm", generation.placement == "embedded"
    if vllm and here and generation.num_engines > 1:
        yield (
            f"generation.num_engines: {generation.num_engines} vLLM engines do not fit into one "
            "process; required: generation.placement: ray"
        )
    if vllm and recipe.deterministic:
        yield (
            "deterministic: found generation.engine vllm, whose numbers depend on what else is in "
            "the batch; required: generation.engine: torch"
        )


def _transfer(recipe: Recipe) -> Iterator[str]:
    way, remote = recipe.generation.weight_transfer, recipe.generation.placement == "ray"
    if way == "in_process" and (remote or recipe.training.backend == "fsdp2"):
        yield (
            "generation.weight_transfer: in_process reaches no other process; required: auto, "
            "file, or ray"
        )
    if way == "ray" and not uses_ray(recipe):
        yield (
            "generation.weight_transfer: ray needs a cluster, this recipe runs in one process; "
            "required: auto"
        )


def _trainer(recipe: Recipe) -> Iterator[str]:
    training = recipe.training
    if training.world_size > 1 and training.backend == "torch":
        yield (
            f"training.world_size: {training.world_size} does nothing with backend torch; "
            "required: training.backend: fsdp2, or leave it out"
        )


def _plane(recipe: Recipe) -> Iterator[str]:
    plane, snapshots = recipe.data_plane, recipe.rollout_checkpointing
    if plane.impl == "memory":
        if plane.storage_units > 1:
            yield (
                f"data_plane.storage_units: {plane.storage_units} does nothing with impl memory; "
                "required: data_plane.impl: transfer_queue, or leave it out"
            )
        if plane.checkpoint == "native":
            yield (
                "data_plane.checkpoint: native is TransferQueue's own; required: data_plane.impl: "
                "transfer_queue, or checkpoint: segments"
            )
    elif plane.checkpoint == "native" and snapshots.anchor_policy == "replay":
        yield (
            "data_plane.checkpoint: native keeps no rows of applied steps; required: "
            "rollout_checkpointing.anchor_policy: exact, or checkpoint: segments"
        )
    elif plane.checkpoint == "native" and plane.timeout_s > recipe.preemption.grace_s / 2:
        yield (
            f"data_plane.timeout_s: {plane.timeout_s:g} s of waiting for changes to pause would "
            f"eat the last snapshot under SIGTERM; required with checkpoint native: <= half of "
            f"preemption.grace_s ({recipe.preemption.grace_s / 2:g} s)"
        )
