"""Procedural sources: items made from (seed, index), identified by generator, version, arguments.

Training and held-out items come from disjoint problems (tiny) or disjoint seeds (reasoning-gym).
May import: `ports`, `errors`, `assets`; reasoning-gym inside functions only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from outlast.assets import sums_task, tiny_task
from outlast.errors import DataFailure, RecipeError
from outlast.ports import PromptItem

HELD_OUT_OFFSET = 2**30
"""Added to the seed of held-out reasoning-gym items; a training source is smaller than that."""
TINY_VERSION = "1"
SUMS_VERSION = "1"


def _identity(**parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class TinyPrompts:
    """Problems of the tiny task: at most as many as there are distinct ones in the split."""

    def __init__(self, *, seed: int, size: int, held_out: bool) -> None:
        self._seed, self._held_out = seed, held_out
        self._size = min(size, tiny_task.size(held_out=held_out))

    @property
    def digest(self) -> str:
        return _identity(
            generator="tiny",
            version=TINY_VERSION,
            seed=self._seed,
            size=self._size,
            held_out=self._held_out,
        )

    def __len__(self) -> int:
        return self._size

    def item(self, index: int) -> PromptItem:
        if not 0 <= index < self._size:
            raise IndexError(f"item {index} of a dataset of {self._size}")
        problem = tiny_task.item(index, self._seed, held_out=self._held_out)
        return PromptItem(problem.prompt, fields={"answer": problem.answer})


class SumsPrompts:
    """Additions of two numbers in words. Training and held-out problems share no pair.

    There are few (one digit: 80 and 20), so the indices go round them again.
    """

    def __init__(self, *, seed: int, size: int, digits: int, held_out: bool) -> None:
        if digits not in (1, 2):
            raise RecipeError(f"dataset.args.digits is {digits}; sums have 1 or 2")
        self._seed, self._digits, self._held_out = seed, digits, held_out
        distinct = sums_task.size(digits=digits, held_out=held_out)
        self._size = min(size, distinct) if held_out else size

    @property
    def digest(self) -> str:
        return _identity(
            generator="sums",
            version=SUMS_VERSION,
            seed=self._seed,
            size=self._size,
            digits=self._digits,
            held_out=self._held_out,
        )

    def __len__(self) -> int:
        return self._size

    def item(self, index: int) -> PromptItem:
        if not 0 <= index < self._size:
            raise IndexError(f"item {index} of a dataset of {self._size}")
        problem = sums_task.item(index, self._seed, digits=self._digits, held_out=self._held_out)
        return PromptItem(problem.prompt, fields={"answer": problem.answer})


class ReasoningGymPrompts:
    """A task of reasoning-gym. Item i of the task is made from seed + i, so splits by seed differ.

    Fields of an item: `answer`, and for the reward `entry` (as generated), `task` and `task_args`.
    """

    def __init__(
        self,
        *,
        task: str,
        args: Mapping[str, str | int | float | bool],
        seed: int,
        size: int,
        held_out: bool,
    ) -> None:
        if size > HELD_OUT_OFFSET:
            raise RecipeError(f"dataset.size is {size}; at most {HELD_OUT_OFFSET} is possible here")
        self._task, self._args = task, dict(args)
        self._size, self._held_out = size, held_out
        first = seed + (HELD_OUT_OFFSET if held_out else 0)
        self._dataset = open_task(task, {**self._args, "size": size, "seed": first})
        self._digest = _identity(
            generator="reasoning_gym",
            version=metadata.version("reasoning-gym"),
            task=task,
            args=self._args,
            seed=seed,
            size=size,
            held_out=held_out,
        )

    @property
    def digest(self) -> str:
        return self._digest

    def __len__(self) -> int:
        return self._size

    def item(self, index: int) -> PromptItem:
        """Generate item `index`. Raises DataFailure when the generator fails on it."""
        if not 0 <= index < self._size:
            raise IndexError(f"item {index} of a dataset of {self._size}")
        try:
            entry = self._dataset[index]
        except Exception as error:  # boundary: a third-party generator may raise anything
            raise DataFailure(
                f"reasoning-gym task {self._task} failed on item {index}: "
                f"{type(error).__name__}: {error}"
            ) from error
        fields = {
            "answer": entry["answer"],
            "entry": entry,
            "task": self._task,
            "task_args": self._args,
        }
        return PromptItem(entry["question"], fields=fields)


def open_task(task: str, args: Mapping[str, object]) -> Any:
    """The reasoning-gym dataset `task` with these arguments. Raises RecipeError."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise RecipeError(
            "dataset.source reasoning_gym needs the extra: pip install 'outlast[reasoning-gym]'"
        ) from error
    if task not in DATASETS:
        raise RecipeError(
            f"dataset.name is {task!r}; reasoning-gym has the tasks {', '.join(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(task, **args)
    except (TypeError, ValueError, AssertionError) as error:  # how its configs report mistakes
        raise RecipeError(f"dataset.args of reasoning-gym task {task}: {error}") from error
