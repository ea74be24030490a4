"""`extra_fingerprint_excluded_paths`: fields that the user declares operational (DESIGN 11).

A pattern is a dotpath in which `*` stands for one segment and `**` for any number. Refused: a bare
wildcard (it would exclude everything), a pattern that matches no fingerprinted field (a misspelt
one would protect nothing), and the list itself. May import: `config`, `errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlast.config.explain import nearest
from outlast.config.fields import FieldClass
from outlast.config.walk import leaf_of, recipe_leaves
from outlast.errors import RecipeError

LIST = "rollout_checkpointing.extra_fingerprint_excluded_paths"
"""Where the patterns stand; part of the identity, so it can never exclude itself."""


def matches(pattern: str, dotpath: str) -> bool:
    """Whether `dotpath` is excluded by `pattern`; a pattern that names a dict covers its keys."""
    leaf = leaf_of(dotpath)
    paths = {dotpath} if leaf is None else {dotpath, leaf.dotpath}
    return any(_matches(pattern.split("."), path.split(".")) for path in paths)


def excluded(patterns: Iterable[str], dotpath: str) -> bool:
    """Whether any of `patterns` excludes `dotpath`; never true for the list itself."""
    return dotpath != LIST and any(matches(pattern, dotpath) for pattern in patterns)


def check_exclusions(patterns: Sequence[str], given: Iterable[str]) -> None:
    """Refuse patterns that must not or need not be there; `given` are the recipe's dotpaths.

    Raises RecipeError that lists every refused pattern.
    """
    keys = {f"{leaf.dotpath}.<key>" for leaf in recipe_leaves().values() if leaf.mapping}
    fields = {*recipe_leaves(), *given, *keys} - {LIST}
    wrong = [line for pattern in patterns if (line := _defect(pattern, fields)) is not None]
    if wrong:
        raise RecipeError("\n  ".join([f"{LIST} is refused:", *wrong]))


def _defect(pattern: str, fields: set[str]) -> str | None:
    parts = pattern.split(".")
    if all(part in ("*", "**") for part in parts):
        return f"{pattern!r}: a bare wildcard excludes everything; required: at least one name"
    if not all(parts) or any("*" in part and part not in ("*", "**") for part in parts):
        return f"{pattern!r}: required are names between dots, with * or ** as a whole segment"
    if pattern == LIST:
        return f"{pattern!r}: the list is part of the identity; required: another field"
    matched = [field for field in fields if matches(pattern, field)]
    kinds = {leaf.kind for field in matched if (leaf := leaf_of(field)) is not None}
    if not matched and leaf_of(pattern) is None:  # else: a key of a dict, not given today
        return f"{pattern!r}: matches no field; the nearest known one is {nearest(pattern)}"
    if kinds == {FieldClass.OPERATIONAL}:
        return f"{pattern!r}: matches only operational fields, which are never in the fingerprint"
    return None


def _matches(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_matches(pattern[1:], path[skip:]) for skip in range(len(path) + 1))
    same = bool(path) and pattern[0] in ("*", path[0])
    return same and _matches(pattern[1:], path[1:])
