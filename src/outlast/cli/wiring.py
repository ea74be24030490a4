"""Wires a recipe to a run: adapters, settings, signals. The only place that knows all of them.

May import: everything below the command line. Imports torch when called, not when imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from outlast.adapters.prompts.build import build_prompts
from outlast.cli.factories import make_engine, make_plane, make_trainer
from outlast.cli.failpoints import from_environment
from outlast.cli.signals import driven
from outlast.config.load import LoadedRecipe
from outlast.config.schema import Recipe
from outlast.durable.files import PosixFiles
from outlast.durable.fingerprint import Identities, fingerprint_of
from outlast.durable.restore import RestoreMode
from outlast.errors import RecipeError
from outlast.model.groups import RecoveryLevel
from outlast.model.plan import RunPlan
from outlast.model.samplers import build_sampler
from outlast.ports import (
    Environment,
    GenerationEngine,
    PromptSource,
    SamplingParams,
)
from outlast.runtime.attempt import AttemptSettings
from outlast.runtime.checkpoint import CheckpointSettings
from outlast.runtime.controller import Adapters, Controller, Outcome
from outlast.runtime.interval import FIRST_S
from outlast.runtime.rollout import RolloutSettings
from outlast.runtime.settings import RunSettings
from outlast.runtime.snapshot import SnapshotSettings
from outlast.runtime.store import RetentionSettings, StorePlace
from outlast.runtime.train import TrainSettings
from outlast.runtime.validation import ValidationSettings
from outlast.runtime.watchdog import WatchdogSettings
from outlast.telemetry.bus import Bus, Sink
from outlast.telemetry.events import AnyEvent, RunStarted, Warned
from outlast.telemetry.sinks import DIRECTORY, JsonlSink, TensorBoardSink, telemetry_file
from outlast.world import World, real_world

_TOKENIZER_FILES = ("tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab")


@dataclass(frozen=True, slots=True)
class Launch:
    """How the run was asked to start."""

    run_dir: Path
    fresh: bool = False
    take_over: bool = False


def run_training(loaded: LoadedRecipe, launch: Launch, *, sinks: Sequence[Sink] = ()) -> Outcome:
    """Start or resume the run and drive it to its end. Blocks; raises what ends the run."""
    recipe = loaded.recipe
    world = real_world(seed=recipe.seed, perhaps=from_environment())
    files = _RunFiles(recipe, launch.run_dir)
    bus = Bus(world.clock, *sinks, files)
    try:
        controller = _controller(loaded, launch, world=world, bus=bus)
        return asyncio.run(driven(controller, grace_s=recipe.preemption.grace_s))
    finally:
        files.close()


class _RunFiles:
    """Sinks that live in the run directory, opened once the life is adopted and has a number."""

    def __init__(self, recipe: Recipe, run_dir: Path) -> None:
        self._recipe = recipe
        self._run_dir = run_dir
        self._sinks: list[JsonlSink | TensorBoardSink] = []

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        if isinstance(event, RunStarted):
            self._open(event.incarnation)
        for sink in self._sinks:
            sink(event, wall)

    def _open(self, incarnation: int) -> None:
        if self._recipe.telemetry.jsonl:
            self._sinks.append(JsonlSink(telemetry_file(self._run_dir, incarnation)))
        if self._recipe.telemetry.tensorboard:
            self._sinks.append(TensorBoardSink(self._run_dir / DIRECTORY / "tensorboard"))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


# ------------------------------------------------------------------------------------ building


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a recipe points at, opened."""

    directory: Path
    """Of the initial model and its tokenizer."""
    environment: Environment
    prompts: PromptSource
    identities: Identities


def parts_of(recipe: Recipe) -> Parts:
    """Open model directory, environment and prompts, and digest them. Raises RecipeError."""
    from outlast.adapters.environments.single_turn import build_environment
    from outlast.adapters.tokenizer import load_tokenizer
    from outlast.adapters.torch_model import resolve_model_directory

    directory = resolve_model_directory(recipe.model.path)
    environment = build_environment(recipe.environment, load_tokenizer(directory))
    prompts = build_prompts(recipe.dataset)
    identities = Identities(
        model=_digest(directory, tokenizer=False),
        tokenizer=_digest(directory, tokenizer=True),
        dataset=prompts.digest,
        environment=_canonical(environment.identity),
    )
    return Parts(
        directory=directory, environment=environment, prompts=prompts, identities=identities
    )


def _controller(loaded: LoadedRecipe, launch: Launch, *, world: World, bus: Bus) -> Controller:
    recipe = loaded.recipe

    def warn(message: str) -> None:
        bus.emit(Warned(message=message))

    engine, parts = make_engine(recipe, warn=warn), parts_of(recipe)
    _require_level(_level(recipe), engine)
    held_out = None
    if recipe.validation.enabled:
        held_out = build_prompts(recipe.dataset, held_out=True, size=recipe.validation.size)
    place = StorePlace(files=PosixFiles(), run_dir=PurePosixPath(launch.run_dir.absolute()))
    return Controller(
        world=world,
        bus=bus,
        place=place,
        settings=run_settings(loaded, launch, prompts=parts.prompts, identities=parts.identities),
        adapters=Adapters(
            engine=engine,
            environment=parts.environment,
            prompts=parts.prompts,
            held_out=held_out,
            make_plane=lambda incarnation: make_plane(
                recipe, place, incarnation=incarnation, world=world, warn=warn
            ),
            make_trainer=lambda plane: make_trainer(recipe, plane),
        ),
    )


def _digest(directory: Path, *, tokenizer: bool) -> str:
    """sha256 over the names and bytes of a model directory's tokenizer, or of all the rest."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.is_file() and path.name.startswith(_TOKENIZER_FILES) is tokenizer:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            digest.update(f"{path.name}\0{content}\n".encode())
    return digest.hexdigest()


def _canonical(identity: Mapping[str, str]) -> str:
    return json.dumps(dict(identity), sort_keys=True)


# ------------------------------------------------------------------------------------ settings


def run_settings(
    loaded: LoadedRecipe, launch: Launch, *, prompts: PromptSource, identities: Identities
) -> RunSettings:
    """The recipe as the runtime's plain values."""
    recipe = loaded.recipe
    snapshots, checkpoints = recipe.rollout_checkpointing, recipe.checkpointing
    stall = recipe.async_rl.stall_watchdog
    replay = snapshots.anchor_policy == "replay"
    interval = snapshots.snapshot_attempt_interval_s
    return RunSettings(
        plan=_plan(recipe, prompts),
        sampler=lambda: build_sampler(
            recipe.async_rl.sampler, recipe.algorithm.num_prompts_per_step
        ),
        fingerprint=fingerprint_of(recipe, identities),
        recipe_text=loaded.unresolved_yaml,
        description=(
            f"{recipe.model.path}, {recipe.dataset.name or recipe.dataset.source}, "
            f"{recipe.async_rl.sampler.name}, recovery level {_level(recipe)}, "
            f"anchors {snapshots.anchor_policy}"
        ),
        restore_mode=RestoreMode(snapshots.restore_mode),
        fresh=launch.fresh,
        take_over=launch.take_over,
        checkpoints=CheckpointSettings(
            save_period=checkpoints.save_period if checkpoints.enabled else None,
            replay=replay,
            max_replay_steps=snapshots.max_replay_steps,
            applied_bytes_max=snapshots.applied_bytes_max,
        ),
        snapshots=SnapshotSettings(
            interval_s=FIRST_S if interval == "auto" else interval,
            mtbf_s=snapshots.mtbf_s if interval == "auto" else None,
            failures_max=snapshots.max_consecutive_failures,
            replay=replay,
        ),
        retention=RetentionSettings(
            keep_latest_k=snapshots.keep_latest_k,
            keep_top_k=checkpoints.keep_top_k,
            metric=checkpoints.metric_name,
        ),
        grace_s=recipe.preemption.grace_s,
        must_save_by_s=checkpoints.must_save_by_s,
        rollout=_rollout(recipe),
        train=TrainSettings(
            max_steps=recipe.algorithm.max_num_steps,
            chunk_groups_min=recipe.async_rl.min_groups_for_streaming_train,
        ),
        validation=validation_settings(recipe) if recipe.validation.enabled else None,
        watchdog=WatchdogSettings(
            stall_timeout_s=stall.stall_timeout_s,
            abort=stall.action == "abort",
            gauge_interval_s=snapshots.telemetry_interval_s,
        ),
    )


def _plan(recipe: Recipe, prompts: PromptSource) -> RunPlan:
    failures, level = recipe.async_rl.rollout_failure, _level(recipe)
    return RunPlan(
        prompts_per_step=recipe.algorithm.num_prompts_per_step,
        siblings=recipe.algorithm.num_generations_per_prompt,
        capacity=recipe.async_rl.max_buffered_rollouts,
        level=lambda _: level,
        dataset=prompts.digest,
        dataset_size=len(prompts),
        seed=recipe.seed,
        epochs=recipe.algorithm.max_num_epochs,
        infrastructure_attempts=failures.infrastructure_attempts,
        data_attempts=failures.data_attempts,
        replace_dropped=failures.on_dropped_prompt == "replace",
        min_step_batch_fraction=failures.min_step_batch_fraction,
        max_skipped_prompts=failures.max_skipped_prompts,
        max_consecutive_dropped_prompts=failures.max_consecutive_dropped_prompts,
    )


def _level(recipe: Recipe) -> RecoveryLevel:
    """The recovery level of this recipe's prompts: by dataset, by environment, else the default."""
    recovery = recipe.rollout_recovery
    by_environment = recovery.overrides.get(recipe.environment.kind, recovery.default_level)
    return RecoveryLevel(
        recovery.overrides.get(recipe.dataset.name or recipe.dataset.source, by_environment)
    )


def _require_level(level: RecoveryLevel, engine: GenerationEngine) -> None:
    """Refuse a level that the engine cannot keep: nothing is lowered silently."""
    if level is RecoveryLevel.TOKEN and not engine.continues_prefixes:
        raise RecipeError(
            "rollout_recovery: level token needs an engine that continues a request from its "
            f"prefix; {type(engine).__name__} does not. Set the level to sibling"
        )


def sampling_of(recipe: Recipe, *, greedy: bool) -> SamplingParams:
    """How the recipe samples; `greedy` as validation does."""
    generation = recipe.generation
    return SamplingParams(
        max_new_tokens=generation.max_new_tokens,
        temperature=0.0 if greedy else generation.temperature,
        top_p=1.0 if greedy else generation.top_p,
        top_k=0 if greedy else generation.top_k,
    )


def _rollout(recipe: Recipe) -> RolloutSettings:
    failures = recipe.async_rl.rollout_failure
    return RolloutSettings(
        attempt=AttemptSettings(
            seed=recipe.seed,
            repeatable=recipe.deterministic,
            sampling=sampling_of(recipe, greedy=False),
            timeout_s=failures.rollout_timeout_s,
        ),
        max_inflight_groups=recipe.async_rl.max_inflight_prompts,
        backoff_s=failures.backoff_s,
        backoff_max_s=failures.backoff_max_s,
        filter_zero_variance=recipe.algorithm.filter_zero_variance,
    )


def validation_settings(recipe: Recipe) -> ValidationSettings:
    """How the recipe validates, whether it is enabled or not."""
    return ValidationSettings(
        period=recipe.validation.val_period,
        size=recipe.validation.size,
        sampling=sampling_of(recipe, greedy=True),
        timeout_s=recipe.async_rl.rollout_failure.rollout_timeout_s,
    )
