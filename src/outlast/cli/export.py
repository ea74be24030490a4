"""`outlast export RUN --to DIR`: a trainer checkpoint as a Hugging Face model directory.

May import: everything below the command line, when it runs.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec
import typer

from outlast.cli.recipes import Given, Overrides
from outlast.errors import NotRestorable

STAGING = ".exporting"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast export --json`."""

    checkpoint: str
    trainer_version: int
    directory: str
    parameters: int
    bytes: int
    files: tuple[str, ...]


def export(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    to: Annotated[Path, typer.Option(help="New directory of the model.", show_default=False)],
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Trainer checkpoint, 0: the initial model; else the newest."),
    ] = None,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Write the policy and its tokenizer in Hugging Face format; the run is only read."""
    from outlast.adapters.hf_export import save_model
    from outlast.adapters.torch_model import resolve_model_directory
    from outlast.cli.output import FILES, open_run, print_json
    from outlast.cli.recipes import recipe_of
    from outlast.cli.weights import read_weights
    from outlast.durable.files import make_directories
    from outlast.durable.staging import staged
    from outlast.world import real_world

    _require_free(to)
    open_run(run, verify="names")
    settings = recipe_of(run, recipe, overrides=overrides).recipe
    state, weights = read_weights(run, settings, step=step, snapshot=None)
    source = resolve_model_directory(settings.model.path)
    target = PurePosixPath(to.absolute())
    make_directories(FILES, target.parent)
    world = real_world(seed=0)
    with staged(FILES, target, suffix=STAGING, world=world, sync=True) as directory:
        parameters = save_model(weights, source=source, to=Path(directory))
    files = sorted(path for path in to.iterdir() if path.is_file())
    made = Exported(
        checkpoint=state.name,
        trainer_version=state.version,
        directory=str(to),
        parameters=parameters,
        bytes=sum(path.stat().st_size for path in files),
        files=tuple(path.name for path in files),
    )
    print_json(made) if as_json else typer.echo(_text(made))


def _require_free(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise NotRestorable(
            f"--to: {to} is not empty; required: an empty directory, or none. Nothing was changed."
        )


def _text(made: Exported) -> str:
    from outlast.cli import format as fmt

    return (
        f"{made.checkpoint} (trainer version {made.trainer_version}) is in {made.directory}: "
        f"{fmt.count(made.parameters)} parameters, {fmt.size(made.bytes)} in "
        f"{fmt.plural(len(made.files), 'file')}, for transformers' from_pretrained"
    )
