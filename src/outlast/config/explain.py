"""Say what is wrong with a recipe in the words of the person who wrote it.

Turns pydantic's error list into lines `dotpath: found X, required Y`, and answers an unknown key
with the name it has here, or with the nearest known one across all sections.
May import: `config`, pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from pydantic import ValidationError

from outlast.config.walk import leaf_of, looks_secret, recipe_leaves, recipe_sections

_CLIP = 60

RENAMED = {
    "interval_s": "rollout_checkpointing.snapshot_attempt_interval_s",
    "snapshot_interval_s": "rollout_checkpointing.snapshot_attempt_interval_s",
    "save_interval_s": "rollout_checkpointing.snapshot_attempt_interval_s",
    "keep_latest": "rollout_checkpointing.keep_latest_k",
    "granularity": "rollout_recovery.default_level",
    "max_trajectory_age_steps": "async_rl.sampler.max_staleness",
    "ft_save_period": "checkpointing.save_period",
    "max_num_epoch": "algorithm.max_num_epochs",
    "lr": "training.learning_rate",
    "grpo": "algorithm",
    "async_grpo": "async_rl",
    "policy": "model",
    "data": "dataset",
    "env": "environment",
}
"""Last segment of a key that other systems or earlier drafts use -> its name here."""


def explain(error: ValidationError, data: Mapping[str, Any]) -> list[str]:
    """One line for each thing that is wrong in `data`, in the order of the schema."""
    lines: dict[str, str] = {}
    for item in error.errors(include_url=False, include_context=False):
        dotpath = ".".join(_given(item["loc"], data))
        if item["type"] == "extra_forbidden":
            line = unknown_key(dotpath)
        elif item["type"] in ("model_type", "model_attributes_type"):
            line = _section_expected(dotpath, item["input"])
        elif item["type"] == "missing":
            line = f"{dotpath}: not given, a value is required"
        elif item["type"] == "value_error":
            line = f"{dotpath}: {item['msg'].removeprefix('Value error, ')}"
        else:
            required = _required(item["msg"], dotpath, found=item["input"])
            line = f"{dotpath}: found {show(item['input'], dotpath)}, required: {required}"
        lines.setdefault(dotpath, line)
    return list(lines.values())


def misread_booleans(
    data: Mapping[str, Any], full: Mapping[str, Any], *, at: str = ""
) -> list[str]:
    """Booleans that pydantic read as numbers, and numbers that it read as booleans."""
    lines: list[str] = []
    for key, value in data.items():
        read = full.get(key)
        if isinstance(value, Mapping) and isinstance(read, Mapping):
            lines += misread_booleans(value, read, at=f"{at}{key}.")
        elif read is not None and isinstance(value, bool) != isinstance(read, bool):
            kind = "true or false" if isinstance(read, bool) else "a number"
            lines.append(f"{at}{key}: found {show(value, key)}, required: {kind}")
    return lines


def unknown_key(dotpath: str) -> str:
    """The refusal of a key that the schema does not have."""
    renamed = RENAMED.get(dotpath.rsplit(".", 1)[-1])
    if renamed is not None:
        return f"{dotpath}: unknown key; here it is called {renamed}"
    return f"{dotpath}: unknown key; the nearest known key is {nearest(dotpath)}"


def nearest(dotpath: str) -> str:
    """The known dotpath most like `dotpath`; the same last segment elsewhere beats a near miss."""
    known = [*recipe_leaves(), *recipe_sections()]
    for leaf in recipe_leaves().values():
        known += leaf.aliases
    last = dotpath.rsplit(".", 1)[-1]

    def likeness(candidate: str) -> tuple[float, float]:
        leaf = SequenceMatcher(None, last, candidate.rsplit(".", 1)[-1]).ratio()
        return leaf, SequenceMatcher(None, dotpath, candidate).ratio()

    return max(known, key=likeness)


def show(value: object, dotpath: str) -> str:
    """`value` for a message: clipped, and hidden where the name looks like a credential."""
    if looks_secret(dotpath):
        return "<hidden>"
    text = repr(value)
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}..."


def _section_expected(dotpath: str, found: object) -> str:
    line = f"{dotpath}: found {show(found, dotpath)}, required is a section with keys of its own"
    if isinstance(found, str) and f"{dotpath}.name" in recipe_leaves():
        line += f"; write {dotpath}.name: {found}"
    return line


def _given(loc: Sequence[str | int], data: Mapping[str, Any]) -> list[str]:
    """The part of pydantic's location that the user wrote: tags of a union are left out."""
    parts: list[str] = []
    node: Any = data
    for step in loc:
        known = ".".join([*parts, str(step)])
        inside = isinstance(node, Mapping) and step in node
        listed = isinstance(node, list) and isinstance(step, int) and step < len(node)
        if inside or listed:
            node = node[step]
        elif known not in recipe_leaves():
            continue
        parts.append(str(step))
    return parts


def _required(message: str, dotpath: str, *, found: object) -> str:
    leaf = leaf_of(dotpath)
    if leaf is not None and leaf.mapping and isinstance(found, list | Mapping):
        return "a string, number or boolean"
    if message.startswith("Input should be "):
        return message.removeprefix("Input should be ")
    return f"{message[:1].lower()}{message[1:]}"
