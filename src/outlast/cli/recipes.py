"""The recipe that a command judges a run by: its own, or the one given; and its fingerprint.

May import: everything below the command line, when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.errors import NotRestorable

if TYPE_CHECKING:
    from outlast.config.load import LoadedRecipe
    from outlast.durable.fingerprint import Fingerprint

Given = Annotated[
    str | None,
    typer.Option("--recipe", help="Recipe to judge by; else the run's own.", show_default=False),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="a.b=v", help="Override a recipe key.")
]


def recipe_of(run: Path, given: str | None, *, overrides: Sequence[str] | None) -> LoadedRecipe:
    """`given`, or RUN/recipe.yaml, under `overrides`. Raises RecipeError or NotRestorable."""
    from outlast.config.load import load_recipe, parse_recipe
    from outlast.durable import names

    if given is not None:
        return load_recipe(given, overrides or ())
    path = run / names.RECIPE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotRestorable(
            f"{path}: found no such file; no life has written its recipe. Give one with --recipe."
        ) from error
    return parse_recipe(text, overrides or (), source=str(path))


def fingerprint_under(loaded: LoadedRecipe) -> Fingerprint:
    """What a start under this recipe would compare stored state with.

    Reads model files and the dataset, to digest them. Raises RecipeError.
    """
    from outlast.cli.wiring import parts_of
    from outlast.durable.fingerprint import fingerprint_of

    return fingerprint_of(loaded.recipe, parts_of(loaded.recipe).identities)
