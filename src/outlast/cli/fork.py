"""`outlast fork RUN --at ID NEW_DIR`: a new run that starts from a cut of another one.

May import: `durable`, `config`, `model`, `cli`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.recipes import Given, Overrides
from outlast.errors import RecipeError

if TYPE_CHECKING:
    from outlast.durable.fork import Forked
    from outlast.durable.forkcut import Terms


def fork(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    new_dir: Annotated[Path, typer.Argument(help="Directory of the new run: empty, or none yet.")],
    at: Annotated[
        str, typer.Option(metavar="ID", help="Cut to start from: snapshot_000007, 7, step_000012.")
    ],
    without_rollouts: Annotated[
        bool,
        typer.Option("--without-rollouts", help="Keep weights and cursor, generate anew."),
    ] = False,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Start a new run from a published cut; the old run stays as it is."""
    from outlast.cli.cuts import find
    from outlast.cli.output import FILES, open_run, print_json
    from outlast.durable.files import make_directories
    from outlast.durable.fork import fork_run
    from outlast.world import real_world

    if (recipe or overrides) and not without_rollouts:
        raise RecipeError(
            "fork: another recipe needs --without-rollouts, since rows mean what the recipe of "
            "their time says. Add it, or leave --recipe and --set to `outlast train`"
        )
    run_dir, listing = open_run(run)
    found = find(listing, at)
    terms = _terms(run, recipe, overrides=overrides) if without_rollouts else None
    target = PurePosixPath(new_dir.absolute())
    make_directories(FILES, target.parent)
    made = fork_run(
        FILES, run_dir, new_dir=target, found=found, world=real_world(seed=0), terms=terms
    )
    print_json(made) if as_json else typer.echo(_text(made, new_dir))


def _terms(run: Path, recipe: str | None, *, overrides: Sequence[str] | None) -> Terms:
    from outlast.cli.recipes import fingerprint_under, recipe_of
    from outlast.durable.forkcut import Terms
    from outlast.model.samplers import build_sampler
    from outlast.runtime.guards import check_recipe

    loaded = recipe_of(run, recipe, overrides=overrides)
    check_recipe(loaded.recipe)
    prompts = loaded.recipe.algorithm.num_prompts_per_step
    return Terms(
        fingerprint=fingerprint_under(loaded),
        recipe=loaded.unresolved_yaml.encode(),
        sampler=build_sampler(loaded.recipe.async_rl.sampler, prompts).name,
        prompts_per_step=prompts,
    )


def _text(made: Forked, new_dir: Path) -> str:
    from outlast.cli import format as fmt

    replay = (
        f", {fmt.plural(made.steps_to_replay, 'step')} to replay" if made.steps_to_replay else ""
    )
    rows = [
        ("from", f"{made.source_cut} of run {made.source_run}, which stays as it is"),
        ("cut", f"{made.cut}, trainer version {made.trainer_version} on {made.anchor}{replay}"),
        ("rollouts", f"{made.siblings:,} finished responses of {made.groups:,} groups"),
        ("reserve", f"{made.reserve:,} prompts to be generated anew" if made.reserve else ""),
        ("settled", f"{made.trained:,} trained, {made.dropped:,} dropped, as audited"),
        ("size", f"{fmt.size(made.bytes)}, every byte a copy of its own, verified"),
        ("go on", f"outlast train {_recipe_hint(new_dir)}"),
    ]
    return f"run {made.run} in {new_dir}\n{fmt.table([row for row in rows if row[1]])}"


def _recipe_hint(new_dir: Path) -> str:
    return f"{new_dir / 'recipe.yaml'} --run-dir {new_dir}"
