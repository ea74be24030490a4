"""Known failures 74, 99-101: every leaf has a class, and its verdict is the one it declares."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from outlast.config.fields import FieldClass, Section, operational, semantic
from outlast.config.schema import Recipe
from outlast.config.walk import (
    Leaf,
    leaf_of,
    leaves_of,
    looks_secret,
    recipe_leaves,
    recipe_sections,
    values_of,
)
from outlast.durable.fingerprint import Identities, compare, fingerprint_of

IDENTITIES = Identities(model="m", tokenizer="t", dataset="d", environment="e")
LEAVES = list(recipe_leaves().values())
BY_NAME = pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.dotpath)


def defects(leaf: Leaf) -> list[str]:
    """What the partition demands of one leaf."""
    if leaf.declared is None:
        return [f"{leaf.dotpath} has no class: declare it semantic, training or operational"]
    if leaf.kind is FieldClass.OPERATIONAL and not leaf.reason.strip():
        return [f"{leaf.dotpath} is operational without a reason"]
    return []


@BY_NAME
def test_every_leaf_declares_its_class_and_operational_ones_a_reason(leaf: Leaf) -> None:
    assert defects(leaf) == []


def test_a_new_field_without_class_or_reason_is_caught() -> None:
    class Careless(Section):
        bare: int = 3
        unexplained: int = operational(3, "?", why=" ")
        fine: int = semantic(3, "fine")

    found = [line for leaf in leaves_of(Careless) for line in defects(leaf)]
    assert found == [
        "bare has no class: declare it semantic, training or operational",
        "unexplained is operational without a reason",
    ]
    assert next(leaves_of(Careless)).kind is FieldClass.SEMANTIC  # in doubt: fail closed


def test_the_walk_reaches_every_value_of_a_recipe() -> None:
    sections = {name.split(".")[0] for name in recipe_sections()}
    assert sections == {
        n for n, f in Recipe.model_fields.items() if n not in ("seed", "deterministic")
    }
    recipe = Recipe.model_validate({"dataset": {"args": {"n": 3, "deep": "x"}}})
    values = values_of(recipe)
    empty = {leaf.dotpath for leaf in LEAVES if leaf.mapping}
    assert {*values} == {*recipe_leaves()} - empty | {"dataset.args.n", "dataset.args.deep"}
    found = leaf_of("dataset.args.n")
    assert found is not None and found.dotpath == "dataset.args"
    assert leaf_of("dataset.nothing") is None


def other(value: object, leaf: Leaf) -> object:
    """A value that differs; whether it is valid does not matter to the fingerprint."""
    if leaf.mapping:
        return {"key": "sibling"}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return ("generation.top_k",)
    if value is None and leaf.dotpath.endswith("_s"):
        return 1.0
    return f"{value}x" if isinstance(value, str) else "x"


def flipped(recipe: Recipe, leaf: Leaf) -> Recipe:
    """`recipe` with another value at `leaf`."""

    def change(node: BaseModel, parts: list[str]) -> Any:
        held = getattr(node, parts[0])
        new = change(held, parts[1:]) if len(parts) > 1 else other(held, leaf)
        return node.model_copy(update={parts[0]: new})

    changed: Recipe = change(recipe, leaf.dotpath.split("."))
    return changed


@BY_NAME
def test_flipping_a_leaf_gives_the_verdict_of_its_class(leaf: Leaf) -> None:
    recipe = Recipe()
    stored = fingerprint_of(recipe, IDENTITIES)
    current = fingerprint_of(flipped(recipe, leaf), IDENTITIES)
    idle = compare(stored, current, steps_to_replay=0)
    replaying = compare(stored, current, steps_to_replay=1)
    expected = {
        FieldClass.SEMANTIC: (False, False),
        FieldClass.TRAINING: (True, False),
        FieldClass.OPERATIONAL: (True, True),
    }[leaf.kind]
    assert (idle.accepted, replaying.accepted) == expected
    silent = leaf.kind is FieldClass.OPERATIONAL
    assert (stored.digest == current.digest) == silent
    changed = [change.dotpath for change in idle.changes]
    key = f"{leaf.dotpath}.key" if leaf.mapping else leaf.dotpath
    assert changed == ([] if silent else [key])


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("dataset.args.api_key", True),
        ("dataset.args.HF_TOKEN", True),
        ("x.password", True),
        ("generation.max_new_tokens", False),
        ("token_capture.enabled", False),
        ("algorithm.truncation", False),
    ],
)
def test_names_of_credentials(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_no_field_of_the_schema_looks_secret() -> None:
    """Such a field would be left out of the fingerprint without anybody having decided it."""
    assert [dotpath for dotpath in recipe_leaves() if looks_secret(dotpath)] == []
