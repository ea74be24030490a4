"""Trainer state of a run, loaded without being a life of it: for `eval` and `export`.

May import: `durable`, `adapters`, `cli`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from outlast.cli import cuts
from outlast.cli.output import FILES, patiently
from outlast.config.schema import Recipe
from outlast.durable import names
from outlast.durable.lineage import lineage_cuts
from outlast.durable.manifest import FoundCut, RunListing, TreeKind
from outlast.durable.verify import verify_file
from outlast.errors import CorruptData, NotRestorable
from outlast.model.cut import AnchorKind
from outlast.model.ids import Incarnation, TrainerVersion
from outlast.ports import Trainer, Weights
from outlast.runtime.store import StorePlace
from outlast.world import World, real_world

READER = Incarnation(1)
"""Between this process's trainer and engine; nothing of it reaches a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """Verified durable trainer state."""

    name: str
    """`step_000012`, or `bootstrap` for the initial model."""
    version: TrainerVersion
    directory: Path | None
    """Where the trainer loads from; None for the initial model."""
    behind: int
    """Steps of the cut asked for that are in no trainer checkpoint."""


def trainer_state(
    run_dir: PurePosixPath, listing: RunListing, *, step: int | None, snapshot: str | None
) -> TrainerState:
    """Of ``step_N`` (0: the initial model), of a snapshot's anchor, else of the newest checkpoint.

    Every shard is verified. Raises NotRestorable, CorruptData or DiskError.
    """
    if snapshot is not None:
        return _anchor_of(run_dir, listing, found=cuts.find(listing, snapshot))
    if step == 0:
        return _initial(behind=0)
    if step is not None:
        return _verified(run_dir, cuts.find(listing, f"step_{step}"))
    checkpoints = [f for f in lineage_cuts(listing) if f.kind is TreeKind.TRAINER_CHECKPOINT]
    return _verified(run_dir, checkpoints[-1]) if checkpoints else _initial(behind=0)


def _initial(*, behind: int) -> TrainerState:
    return TrainerState(name="bootstrap", version=TrainerVersion(0), directory=None, behind=behind)


def _anchor_of(run_dir: PurePosixPath, listing: RunListing, *, found: FoundCut) -> TrainerState:
    if found.manifest is None:
        raise CorruptData(f"{found.path} is corrupt: {found.defect}. Use another cut.")
    anchor = found.manifest.anchor
    behind = found.manifest.trainer_version - anchor.version
    if anchor.kind is AnchorKind.BOOTSTRAP:
        return _initial(behind=behind)
    tree = cuts.find(listing, f"step_{anchor.version}")
    if tree.manifest is not None and tree.manifest.history != anchor.history:
        raise NotRestorable(
            f"{found.path} is anchored to another {tree.path} than the one that stands. Nothing "
            "was changed. Use --step, or another cut."
        )
    return _verified(run_dir, tree, behind=behind)


def _verified(run_dir: PurePosixPath, found: FoundCut, *, behind: int = 0) -> TrainerState:
    if found.manifest is None:
        raise CorruptData(f"{found.path} is corrupt: {found.defect}. Use another checkpoint.")
    for entry in found.manifest.files:
        if entry.name.startswith(f"{names.TRAINER}/"):
            verify_file(FILES, run_dir / found.path, entry=entry)
    return TrainerState(
        name=found.path.name,
        version=found.manifest.trainer_version,
        directory=Path(run_dir / found.path / names.TRAINER),
        behind=behind,
    )


def read_weights(
    run: Path, recipe: Recipe, *, step: int | None, snapshot: str | None
) -> tuple[TrainerState, Weights]:
    """The policy of a trainer checkpoint; another look when a live run removes it meanwhile.

    Raises what `trainer_state` raises, and RecipeError for a model that does not load.
    """
    import outlast.adapters.trainers.torch_trainer  # noqa: F401  (seconds, so before any look)

    world = real_world(seed=recipe.seed)

    def read(run_dir: PurePosixPath, listing: RunListing) -> tuple[TrainerState, Weights]:
        state = trainer_state(run_dir, listing, step=step, snapshot=snapshot)
        trainer = reading_trainer(recipe, run_dir, world=world)
        return state, asyncio.run(_loaded(trainer, state))

    return patiently(run, read)


async def _loaded(trainer: Trainer, state: TrainerState) -> Weights:
    try:
        return await load_weights(trainer, state)
    finally:
        await trainer.close()


def reading_trainer(recipe: Recipe, run_dir: PurePosixPath, *, world: World) -> Trainer:
    """The recipe's trainer on an empty data plane: it only gives its weights."""
    from outlast.cli.factories import in_this_process, make_plane, make_trainer

    recipe, place = in_this_process(recipe), StorePlace(files=FILES, run_dir=run_dir)
    plane = make_plane(recipe, place, incarnation=READER, world=world)
    return make_trainer(recipe, plane)


async def load_weights(trainer: Trainer, state: TrainerState) -> Weights:
    """Load `state` and give the policy. Raises NotRestorable when it is of another model."""
    await trainer.start(state.directory, state.version)
    return await trainer.weights(READER)
