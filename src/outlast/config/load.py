"""Load a recipe: defaults <- file <- `--set a.b=c`, interpolated, validated, kept unresolved.

Every mistake on the page is named at once: dotpath, value found, what is required, and for an
unknown key the name it has here (known failures 75, 96, 97, 109, 110: a misspelt key that is
ignored disables durability silently). May import: `config`, `errors`, omegaconf, pydantic, yaml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)
from pydantic import ValidationError

from outlast.config.explain import explain, misread_booleans
from outlast.config.schema import Recipe
from outlast.config.walk import looks_secret, recipe_leaves
from outlast.errors import RecipeError

PACKAGED = Path(__file__).resolve().parent.parent / "recipes"
"""Recipes that ship with the package; `recipes/` of a clone is a link to it."""
DEFAULT = "tiny"
"""The recipe of `outlast train` without a recipe: the built-in demo."""
WITHHELD = "???"
"""OmegaConf's mark for a value that must be given; stands for a literal secret once saved."""


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A valid recipe, and the text to keep beside what it makes."""

    recipe: Recipe
    unresolved_yaml: str
    """All keys; interpolations as written and literal secrets withheld, so no secret is saved."""


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load the recipe at `path` (None: the built-in demo) under `overrides` (`a.b=value`).

    A path that does not exist but names a packaged recipe (`tiny`, `recipes/tiny.yaml`) loads that.
    Raises RecipeError, listing every violation.
    """
    source = recipe_path(path)
    return _validated(_merged(_read(source), overrides), source=str(source))


def parse_recipe(text: str, overrides: Sequence[str] = (), *, source: str) -> LoadedRecipe:
    """Load a recipe from its text, as `load_recipe` does; `source` names it in messages."""
    return _validated(_merged(_parse(text, source), overrides), source=source)


def recipe_path(path: str | Path | None) -> Path:
    """Where the recipe `path` is read from. Raises RecipeError for one that is nowhere."""
    asked = PurePath(path if path is not None else DEFAULT)
    if path is not None and Path(asked).is_file():
        return Path(asked)
    packaged = PACKAGED / f"{asked.stem}.yaml"
    named = len(asked.parts) == 1 or asked.parts[:-1] == ("recipes",)
    if named and asked.suffix in ("", ".yaml") and packaged.is_file():
        return packaged
    shipped = ", ".join(sorted(found.stem for found in PACKAGED.glob("*.yaml")))
    raise RecipeError(f"recipe {asked}: no such file. Give a YAML file, or one of: {shipped}")


def _read(path: Path) -> DictConfig:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: cannot be read: {error}") from error
    return _parse(text, str(path))


def _parse(text: str, source: str) -> DictConfig:
    try:
        config = OmegaConf.create(text) if text.strip() else OmegaConf.create({})
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise RecipeError(f"recipe {source}: not valid YAML: {error}") from error
    if not isinstance(config, DictConfig):
        raise RecipeError(f"recipe {source}: found a list; required are sections such as `model:`")
    return config


def _merged(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key.strip() or any(not part for part in key.split(".")):
            raise RecipeError(f"--set {text}: required is a.b=value, such as seed=3")
        try:
            merged = OmegaConf.merge(config, OmegaConf.from_dotlist([text]))
        except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
            raise RecipeError(f"--set {text}: {error}") from error
        assert isinstance(merged, DictConfig)
        config = merged
    return config


def _validated(given: DictConfig, *, source: str) -> LoadedRecipe:
    raw = _container(given, resolve=False)
    missing = [f"{dotpath}: found ???, a value is required" for dotpath in _withheld(raw)]
    if missing:
        raise _refusal(source, missing)
    named = _one_name_each(raw, source)
    config = OmegaConf.merge(Recipe().model_dump(mode="json"), named)
    assert isinstance(config, DictConfig)
    data = _resolved(config, source)
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise _refusal(source, explain(error, data)) from error
    full = recipe.model_dump(mode="json")
    misread = misread_booleans(data, full)
    if misread:
        raise _refusal(source, misread)
    kept = _unresolved(full, _container(config, resolve=False), dotpath="")
    return LoadedRecipe(recipe, yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _refusal(source: str, lines: Sequence[str]) -> RecipeError:
    return RecipeError("\n  ".join([f"recipe {source} is refused:", *lines]))


def _resolved(config: DictConfig, source: str) -> dict[str, Any]:
    try:
        return _container(config, resolve=True)
    except (InterpolationResolutionError, InterpolationKeyError) as error:
        first = str(error).splitlines()[0]
        remedy = "interpolate a key of the recipe, or ${oc.env:NAME,default}"
        raise _refusal(source, [f"{error.full_key}: {first}. Set it, or {remedy}"]) from error
    except OmegaConfBaseException as error:
        raise _refusal(source, [str(error).splitlines()[0]]) from error


def _container(config: DictConfig, *, resolve: bool) -> dict[str, Any]:
    plain = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _one_name_each(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """Give every aliased field its own name, so that it merges over the default."""
    for leaf in recipe_leaves().values():
        name = leaf.dotpath.rsplit(".", 1)[-1]
        for alias in leaf.aliases:
            *parents, last = alias.split(".")
            section: Any = raw
            for parent in parents:
                section = section.get(parent) if isinstance(section, dict) else None
            if not isinstance(section, dict) or last not in section:
                continue
            if name in section:
                line = (
                    f"{alias}: found beside {leaf.dotpath}, which it means; required: one of them"
                )
                raise _refusal(source, [line])
            section[name] = section.pop(last)
    return raw


def _withheld(raw: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in raw.items():
        if value == WITHHELD:
            yield f"{prefix}{key}"
        elif isinstance(value, Mapping):
            yield from _withheld(value, f"{prefix}{key}.")


def _unresolved(full: Any, raw: Any, *, dotpath: str) -> Any:
    """`full`, with every interpolation as `raw` wrote it and every literal secret withheld."""
    if isinstance(raw, str) and "${" in raw:
        return raw
    if isinstance(full, dict):
        below: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
        return {
            key: _unresolved(value, below.get(key), dotpath=f"{dotpath}.{key}")
            for key, value in full.items()
        }
    if isinstance(full, list) and isinstance(raw, list):
        return [
            _unresolved(item, given, dotpath=dotpath) for item, given in zip(full, raw, strict=True)
        ]
    return WITHHELD if looks_secret(dotpath) and full is not None else full
