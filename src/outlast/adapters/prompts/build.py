"""From the dataset section of a recipe to a prompt source.

Training and held-out items are disjoint by construction in procedural sources. Files are split by
their owner: `dataset.held_out` names the held-out file or split, and nothing is guessed.
May import: the adapters beside it, `ports`, `config`, `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outlast.adapters.prompts.columns import Columns
from outlast.adapters.prompts.files import open_files
from outlast.adapters.prompts.hf import split_files
from outlast.adapters.prompts.procedural import ReasoningGymPrompts, SumsPrompts, TinyPrompts
from outlast.config.schema import DatasetSection
from outlast.errors import RecipeError
from outlast.ports import PromptItem, PromptSource


@dataclass(frozen=True)
class FirstItems:
    """The first `size` items of a source."""

    source: PromptSource
    size: int

    @property
    def digest(self) -> str:
        return f"{self.source.digest}:{self.size}"

    def __len__(self) -> int:
        return self.size

    def item(self, index: int) -> PromptItem:
        return self.source.item(index)


def build_prompts(
    section: DatasetSection, *, held_out: bool = False, size: int | None = None
) -> PromptSource:
    """The training source, or with `held_out` the validation source.

    `size` caps the number of items; None is everything (of a procedural source: `dataset.size`).
    Reads files once, to index and digest them. Raises RecipeError naming the key that is wrong.
    """
    source = _open(section, held_out=held_out, size=size)
    if size is not None and size < 1:
        raise RecipeError(f"a prompt source of {size} items; at least 1 is required")
    return source if size is None or len(source) <= size else FirstItems(source, size)


def _open(section: DatasetSection, *, held_out: bool, size: int | None) -> PromptSource:
    items = section.size if size is None else size
    if section.source == "tiny":
        return TinyPrompts(seed=section.seed, size=items, held_out=held_out)
    if section.source == "sums":
        digits = section.args.get("digits", 1)
        return SumsPrompts(seed=section.seed, size=items, digits=int(digits), held_out=held_out)
    if section.source == "reasoning_gym":
        if section.name is None:
            raise RecipeError("dataset.source is reasoning_gym; dataset.name must name its task")
        return ReasoningGymPrompts(
            task=section.name, args=section.args, seed=section.seed, size=items, held_out=held_out
        )
    columns = Columns.of(section)
    if section.source == "hf":
        return open_files(split_files(section, held_out=held_out), columns=columns)
    key = "dataset.held_out" if held_out else "dataset.path"
    value = section.held_out if held_out else section.path
    if value is None:
        advice = "; or set validation.enabled: false" if held_out else ""
        raise RecipeError(f"dataset.source is {section.source}; {key} must name a file{advice}")
    path = Path(value).expanduser()
    if not path.is_file():
        raise RecipeError(f"{key} is {value!r}; there is no such file")
    return open_files([path], columns=columns, kind=section.source)
