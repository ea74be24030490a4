"""Reward functions by name: `tiny`, `last_number`, `reasoning_gym`, or `module:function`.

A reward function takes (response: str, fields: Mapping[str, object]) and returns a finite float,
or an awaitable of one. `response` is the decoded response without special tokens; `fields` are
those of the prompt item (`answer` among them). A plain function runs in a thread of its own, so it
may block; it must be thread-safe. May import: `ports`, `errors`, `assets.tiny_task`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from outlast.assets import tiny_task
from outlast.errors import RecipeError

RewardFunction = Callable[[str, Mapping[str, object]], "float | Awaitable[float]"]
_NUMBER = re.compile(
    r"(?:(?<![\w.)])[-+])?"  # a sign, not the minus of a subtraction
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"
)
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward function with the identity that the fingerprint records."""

    name: str
    function: RewardFunction
    digest: str
    """Version of a built-in; sha256 of the module's source of a user's function, where it has one
    (the module, because the function calls its neighbours)."""
    blocking: bool
    """Whether a call may take long, and so runs in a thread."""


def load_reward(name: str) -> Reward:
    """The reward that a recipe names. Raises RecipeError."""
    if name == "tiny":
        return Reward(name, _tiny, digest="1", blocking=False)
    if name == "last_number":
        return Reward(name, _last_number, digest="1", blocking=False)
    if name == "reasoning_gym":
        try:
            version = metadata.version("reasoning-gym")
        except metadata.PackageNotFoundError as error:
            raise RecipeError(
                "environment.reward reasoning_gym needs the extra: "
                "pip install 'outlast[reasoning-gym]'"
            ) from error
        return Reward(name, _reasoning_gym, digest=version, blocking=True)
    return _load_user_reward(name)


def _load_user_reward(name: str) -> Reward:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name.isidentifier():
        raise RecipeError(
            f"environment.reward is {name!r}; tiny, last_number, reasoning_gym or "
            "module:function is required"
        )
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except Exception as error:  # boundary: importing user code, which may raise anything
        raise RecipeError(
            f"environment.reward {name!r} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise RecipeError(
            f"environment.reward {name!r} is a {type(function).__name__}; "
            "a function (response, fields) -> float is required"
        )
    return Reward(name, function, digest=_source_digest(module), blocking=True)


def _source_digest(module: Any) -> str:
    file = getattr(module, "__file__", None)
    if not file or not Path(file).is_file():
        return "unknown"  # compiled or interactive: the name alone identifies it
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _tiny(response: str, fields: Mapping[str, object]) -> float:
    return tiny_task.reward(response, str(fields["answer"]))


def _last_number(response: str, fields: Mapping[str, object]) -> float:
    """1.0 when the last number of the response equals the last number of the answer."""
    wanted = last_number(str(fields["answer"]))
    if wanted is None:
        raise ValueError(f"the answer {fields['answer']!r} contains no number")
    return 1.0 if last_number(response) == wanted else 0.0


def last_number(text: str) -> Decimal | None:
    """The last number in `text`, compared by value: 1,000.0 equals 1000. None without one."""
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _reasoning_gym(response: str, fields: Mapping[str, object]) -> float:
    """Score of the task on the last <answer>...</answer>, or else on the whole response."""
    tagged = _ANSWER_TAG.findall(response)
    answer = (tagged[-1] if tagged else response).strip()
    scorer = _scorer(str(fields["task"]), json.dumps(fields["task_args"], sort_keys=True))
    return float(scorer.score_answer(answer, fields["entry"]))


@lru_cache(maxsize=32)
def _scorer(task: str, args: str) -> Any:
    import reasoning_gym

    return reasoning_gym.create_dataset(task, **{**json.loads(args), "size": 1, "seed": 0})
