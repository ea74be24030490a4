"""Makes the adapters that a recipe chooses: engine, data plane, trainer.

What is chosen is imported when it is made, so that nobody needs what he does not use.
May import: `adapters`, `config`, `durable`, `ports`, `runtime.store`.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.config.schema import Recipe
from outlast.durable.names import RunPaths
from outlast.model.ids import Incarnation
from outlast.ports import DataPlane, GenerationEngine, Trainer
from outlast.runtime.store import StorePlace
from outlast.world import World

Warn = Callable[[str], None]


def in_this_process(recipe: Recipe) -> Recipe:
    """The same run without a cluster, for tools that only look: nothing of what is trained, sampled
    or stored depends on where it happens."""
    generation = recipe.generation.model_copy(update={"placement": "embedded", "num_engines": 1})
    training = recipe.training.model_copy(update={"backend": "torch", "world_size": 1})
    plane = recipe.data_plane.model_copy(update={"impl": "memory", "checkpoint": "segments"})
    return recipe.model_copy(
        update={"generation": generation, "training": training, "data_plane": plane}
    )


def unheard(_: str) -> None:
    """For tools that have nobody to warn."""


def make_engine(recipe: Recipe, *, warn: Warn = unheard) -> GenerationEngine:
    """The embedded torch engine, which dies with this process, or a pool, which makes its engines
    again. Raises RecipeError."""
    generation = recipe.generation
    alone = generation.placement == "embedded" and generation.num_engines == 1
    if alone and generation.engine == "torch":
        return _embedded_engine(recipe)
    from outlast.adapters.engines.pool import EnginePool
    from outlast.adapters.weight_transfer import make_transfer

    def member(_: int) -> GenerationEngine:
        return _embedded_engine(recipe) if on_host else _ray_engine(recipe)

    on_host = generation.placement == "embedded"
    return EnginePool(
        member,
        count=generation.num_engines,
        min_healthy=generation.min_healthy_engines,
        health_interval_s=generation.health_interval_s,
        health_timeout_s=generation.health_timeout_s,
        start_timeout_s=generation.start_timeout_s,
        transfer=make_transfer(weight_transfer(recipe)),
        on_warning=warn,
    )


def weight_transfer(recipe: Recipe) -> str:
    """How weights travel: what the recipe says, else the cheapest that reaches every engine."""
    if recipe.generation.weight_transfer != "auto":
        return recipe.generation.weight_transfer
    if recipe.generation.placement == "embedded" and recipe.training.backend == "torch":
        return "in_process"
    return "file" if recipe.ray.address is None else "ray"


def _embedded_engine(recipe: Recipe) -> GenerationEngine:
    if recipe.generation.engine == "vllm":
        from outlast.adapters.engines.vllm_engine import VllmEngine

        return VllmEngine(
            model_path=recipe.model.path,
            generation=recipe.generation,
            device=recipe.training.device,
        )
    from outlast.adapters.engines.torch_engine import TorchEngine

    return TorchEngine(
        model_path=recipe.model.path,
        generation=recipe.generation,
        deterministic=recipe.deterministic,
        device=recipe.training.device,
    )


def _ray_engine(recipe: Recipe) -> GenerationEngine:
    from outlast.adapters.engines.ray_engine import RayEngine

    return RayEngine(
        engine=recipe.generation.engine,
        model_path=recipe.model.path,
        generation=recipe.generation,
        deterministic=recipe.deterministic,
        device=recipe.training.device,
        ray=recipe.ray,
    )


def make_plane(
    recipe: Recipe,
    place: StorePlace,
    *,
    incarnation: Incarnation,
    world: World,
    warn: Warn = unheard,
) -> DataPlane:
    """The data plane of a recipe; touches no disk until something is put or saved."""
    segments = RunPaths(place.run_dir).segments
    if recipe.data_plane.impl == "transfer_queue":
        from outlast.adapters.planes.transfer_queue import TransferQueuePlane

        return TransferQueuePlane(
            place.files,
            segments,
            incarnation=incarnation,
            offload=world.offload,
            settings=recipe.data_plane,
            ray=recipe.ray,
            on_warning=warn,
        )
    from outlast.adapters.planes.memory import MemoryPlane

    return MemoryPlane(place.files, segments, incarnation=incarnation, offload=world.offload)


def make_trainer(recipe: Recipe, plane: DataPlane) -> Trainer:
    """The trainer of a recipe, on the rows of `plane`. Raises RecipeError."""
    if recipe.training.backend == "fsdp2":
        from outlast.adapters.trainers.sharded_trainer import ShardedTrainer

        return ShardedTrainer(
            model_path=recipe.model.path,
            algorithm=recipe.algorithm,
            training=recipe.training,
            plane=plane,
            temperature=recipe.generation.temperature,
            deterministic=recipe.deterministic,
            ray=recipe.ray,
            reader=_reader(recipe, plane),
            transfer=weight_transfer(recipe),
        )
    from outlast.adapters.trainers.torch_trainer import TorchTrainer

    return TorchTrainer(
        model_path=recipe.model.path,
        algorithm=recipe.algorithm,
        training=recipe.training,
        plane=plane,
        temperature=recipe.generation.temperature,
        deterministic=recipe.deterministic,
    )


def _reader(recipe: Recipe, plane: DataPlane) -> object | None:
    """How ranks fetch rows by themselves; None where the rows live in this process."""
    if recipe.data_plane.impl != "transfer_queue":
        return None
    from outlast.adapters.planes.transfer_queue import TransferQueuePlane

    return plane.reader() if isinstance(plane, TransferQueuePlane) else None
