"""`outlast eval RUN`: greedy validation of a trainer checkpoint, beside the run or after it.

May import: everything below the command line, when it runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlast.cli.recipes import Given, Overrides
from outlast.errors import RecipeError

if TYPE_CHECKING:
    from outlast.config.schema import Recipe
    from outlast.durable.manifest import RunListing
    from outlast.ports import Weights
    from outlast.runtime.validation import Grade


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast eval --json`."""

    checkpoint: str
    trainer_version: int
    prompts: int
    failed: int
    """Prompts that raised; they count as reward 0."""
    reward: float
    response_tokens_mean: float
    recorded: float | None
    """What the run's own validation gave at this version, if it is on record."""
    steps_not_included: int
    """Of a snapshot: steps above its trainer checkpoint."""
    seconds: float


def evaluate(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Trainer checkpoint, 0: the initial model; else the newest."),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="ID", help="The trainer checkpoint under this cut.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=1, help="Held-out prompts; else validation.size.")
    ] = None,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Validate a trainer checkpoint greedily on held-out prompts; the run is only read."""
    from outlast.cli.output import open_run, patiently, print_json
    from outlast.cli.recipes import recipe_of
    from outlast.cli.weights import read_weights

    if step is not None and snapshot is not None:
        raise typer.BadParameter("give --step or --snapshot, not both")
    open_run(run, verify="names")
    settings = recipe_of(run, recipe, overrides=overrides).recipe
    began = time.monotonic()
    state, weights = read_weights(run, settings, step=step, snapshot=snapshot)
    grade = asyncio.run(_examined(settings, weights, size=size))
    found = Evaluation(
        checkpoint=state.name,
        trainer_version=state.version,
        prompts=grade.prompts,
        failed=grade.failed,
        reward=grade.reward,
        response_tokens_mean=grade.response_tokens,
        recorded=patiently(run, partial(_recorded, version=state.version)),
        steps_not_included=state.behind,
        seconds=time.monotonic() - began,
    )
    print_json(found) if as_json else typer.echo(_text(found))


async def _examined(recipe: Recipe, weights: Weights, *, size: int | None) -> Grade:
    from outlast.adapters.prompts.build import build_prompts
    from outlast.cli.factories import in_this_process, make_engine
    from outlast.cli.weights import READER
    from outlast.cli.wiring import parts_of, validation_settings
    from outlast.runtime.validation import Grade, examine
    from outlast.world import real_world

    world = real_world(seed=recipe.seed)
    settings = validation_settings(recipe)
    settings = replace(settings, size=size or settings.size)
    prompts = build_prompts(recipe.dataset, held_out=True, size=settings.size)
    if not len(prompts):
        raise RecipeError("validation: the held-out source has no prompt; give one that has")
    engine = make_engine(in_this_process(recipe))
    try:
        await engine.start()
        await engine.update_weights(weights)
        rollouts = await examine(
            prompts,
            settings,
            engine=engine,
            environment=parts_of(recipe).environment,
            incarnation=READER,
            offload=world.offload,
            tag="eval",
            warn=_warner(),
        )
    finally:
        await engine.close()
    return Grade.of(rollouts)


def _warner() -> Callable[[str], None]:
    def warn(message: str) -> None:
        typer.echo(f"warning: {message}", err=True)

    return warn


def _recorded(run_dir: PurePosixPath, listing: RunListing, *, version: int) -> float | None:
    from outlast.cli.output import FILES
    from outlast.durable.cuts import peek_cut
    from outlast.durable.lineage import lineage_cuts

    for found in reversed(lineage_cuts(listing)[-1:]):
        metrics = peek_cut(FILES, run_dir, found=found).metrics
        return metrics.get(str(version), {}).get("val:reward")
    return None


def _text(e: Evaluation) -> str:
    from outlast.cli import format as fmt

    above = (
        f"{fmt.plural(e.steps_not_included, 'step')} above it are in no trainer checkpoint"
        if e.steps_not_included
        else ""
    )
    failed = f", {e.failed:,} failed" if e.failed else ""
    recorded = "" if e.recorded is None else f"{e.recorded:.4f} by the run's own validation"
    rows = [
        ("reward", f"{e.reward:.4f} over {fmt.plural(e.prompts, 'held-out prompt')}{failed}"),
        ("recorded", recorded),
        ("length", f"{e.response_tokens_mean:.1f} tokens"),
        ("note", above),
        ("took", fmt.duration(e.seconds)),
    ]
    head = f"{e.checkpoint}, trainer version {e.trainer_version}, greedy"
    return f"{head}\n{fmt.table([row for row in rows if row[1]])}"
