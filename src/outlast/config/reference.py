"""Every key of the recipe as a page of documentation, from the schema's own metadata.

`python -m outlast.config.reference > docs/recipe.md` writes the page; a test compares the two, so
a key can neither be added nor change its default or class without its documentation.
May import: `config.fields`, `config.schema`, `config.walk`, pydantic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from outlast.config.schema import Recipe
from outlast.config.walk import Leaf, recipe_leaves

INTRODUCTION = """\
# Recipe

A recipe is a YAML file. It needs only the keys that differ from their defaults. `--set a.b=v`
overrides one key, and values may refer to other keys (`${seed}`) or to the environment
(`${oc.env:NAME,default}`). An unknown key is refused with the nearest known one, and so is a
combination that could not work, before anything is written (exit code 78).

Every key has a class. It decides what a change means for a run that already exists:

| class | decides | a change at a restart is |
|---|---|---|
| semantic | what rollouts mean | refused in every restore mode, with old and new value |
| training | what an optimizer step does with rollouts | accepted, unless steps must be replayed |
| operational | how fast, how often, how much, where | accepted; the reason stands with the class |

`rollout_checkpointing.extra_fingerprint_excluded_paths` lets a user declare more paths operational.

This page is generated: `python -m outlast.config.reference > docs/recipe.md`.
"""

_SIMPLE = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
_BOUNDS = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))


def as_markdown() -> str:
    """The whole page, with one table per section in the order of the schema."""
    return "\n".join([INTRODUCTION, *_section(Recipe, prefix="", title="Top level")])


def _section(model: type[BaseModel], *, prefix: str, title: str) -> Iterator[str]:
    leaves = {name: info for name, info in model.model_fields.items() if not _is_section(info)}
    yield f"## {title}\n\n{(model.__doc__ or '').strip()}\n"
    if leaves:
        yield "| key | type | default | class | meaning |\n|---|---|---|---|---|"
        for name, info in leaves.items():
            yield _row(info, recipe_leaves()[f"{prefix}{name}"], name=name)
        yield ""
    for name, info in model.model_fields.items():
        if _is_section(info):
            assert isinstance(info.annotation, type)
            inner = f"{prefix}{name}"
            yield from _section(info.annotation, prefix=f"{inner}.", title=f"`{inner}`")


def _is_section(info: FieldInfo) -> bool:
    return isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel)


def _row(info: FieldInfo, leaf: Leaf, *, name: str) -> str:
    kind = f"{leaf.kind.value}: {leaf.reason}" if leaf.reason else leaf.kind.value
    about = info.description or ""
    if leaf.aliases:
        also = ", ".join(f"`{alias.rsplit('.', 1)[-1]}`" for alias in leaf.aliases)
        about = f"{about}; also accepted as {also}"
    shape = ", ".join([_type(info.annotation), *_bounds(info.metadata)])
    cells = [f"`{name}`", shape, _default(info.default), kind, about]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _bounds(metadata: Iterable[object]) -> list[str]:
    return [
        f"{sign} {getattr(item, attribute)}"
        for item in metadata
        for attribute, sign in _BOUNDS
        if getattr(item, attribute, None) is not None
    ]


def _type(annotation: Any) -> str:
    """The words for a type: choices are listed, a union is read out."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inside = [bound for item in inner[1:] for bound in _bounds(getattr(item, "metadata", ()))]
        return " ".join([_type(inner[0]), *inside])
    if origin is Literal:
        return " or ".join(f"`{choice}`" for choice in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_type(part) for part in inner))
    if origin is dict:
        return f"map of {_type(inner[1])}" if get_origin(inner[1]) is Literal else "map of values"
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    return _SIMPLE[annotation]


def _default(value: object) -> str:
    if value is PydanticUndefined:
        return "required"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


if __name__ == "__main__":
    print(as_markdown(), end="")
