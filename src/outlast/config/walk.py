"""Every leaf of the recipe schema with its class, and every value of a recipe by dotpath.

One walk serves the loader (known keys), the fingerprint (what enters it) and the partition test
(known failure 74: a list of included fields once missed a section). May import: `config`, pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from outlast.config.fields import FieldClass, Scalar
from outlast.config.schema import Recipe

Value = Scalar | tuple[Scalar, ...]
"""What a dotpath holds: a scalar, or the items of a list."""

_SECRET = re.compile(
    r"(^|_)(password|passwd|secret|credentials?|api_?key|access_key|private_key|token)$", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One field of the schema that is not a section."""

    dotpath: str
    declared: str | None
    """The class as written; None when the field was declared without one."""
    reason: str
    mapping: bool
    """True for a dict field: its keys are the user's, and lie one level below the dotpath."""
    aliases: tuple[str, ...]
    """Other dotpaths under which a recipe may give this field."""

    @property
    def kind(self) -> FieldClass:
        """The declared class; SEMANTIC when in doubt (fail closed)."""
        return FieldClass(self.declared) if self.declared else FieldClass.SEMANTIC


def leaves_of(model: type[BaseModel], prefix: str = "") -> Iterator[Leaf]:
    """Every leaf below `model`, in declaration order."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves_of(kind, f"{prefix}{name}.")
        else:
            yield _leaf(name, info, prefix=prefix)


def sections_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotpath of every section below `model`."""
    for name, info in model.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield f"{prefix}{name}"
            yield from sections_of(kind, f"{prefix}{name}.")


@cache
def recipe_leaves() -> dict[str, Leaf]:
    """The leaves of `Recipe`, by dotpath."""
    return {leaf.dotpath: leaf for leaf in leaves_of(Recipe)}


@cache
def recipe_sections() -> frozenset[str]:
    """The dotpaths of the sections of `Recipe`."""
    return frozenset(sections_of(Recipe))


def values_of(recipe: Recipe) -> dict[str, Value]:
    """Every value of `recipe` by dotpath; a dict field gives one dotpath per key."""
    dumped: Mapping[str, object] = recipe.model_dump(mode="json")
    return dict(_flat(dumped, ""))


def leaf_of(dotpath: str) -> Leaf | None:
    """The leaf that `dotpath` names, or that the key of a dict field belongs to."""
    leaves = recipe_leaves()
    found = leaves.get(dotpath)
    if found is None:
        parents = (leaf for leaf in leaves.values() if leaf.mapping)
        found = next((p for p in parents if dotpath.startswith(f"{p.dotpath}.")), None)
    return found


def looks_secret(dotpath: str) -> bool:
    """Whether the last segment is a name that people give to credentials."""
    return _SECRET.search(dotpath.rsplit(".", 1)[-1]) is not None


def _leaf(name: str, info: FieldInfo, *, prefix: str) -> Leaf:
    extra = info.json_schema_extra
    declared: Mapping[str, object] = extra if isinstance(extra, Mapping) else {}
    kind = declared.get("class")
    alias = info.validation_alias
    names = alias.choices if isinstance(alias, AliasChoices) else ()
    return Leaf(
        dotpath=f"{prefix}{name}",
        declared=str(kind) if kind else None,
        reason=str(declared.get("reason", "")),
        mapping=getattr(info.annotation, "__origin__", None) is dict,
        aliases=tuple(f"{prefix}{other}" for other in names if other != name),
    )


def _flat(data: Mapping[str, object], prefix: str) -> Iterator[tuple[str, Value]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list):
            yield f"{prefix}{name}", tuple(value)
        elif value is None or isinstance(value, str | int | float):
            yield f"{prefix}{name}", value
        else:
            raise TypeError(f"{prefix}{name} holds {type(value).__name__}, which is not a leaf")
