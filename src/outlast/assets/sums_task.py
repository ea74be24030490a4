"""The task of the SmolLM2 recipe: sums of two numbers in the wording of reasoning-gym's chain_sum.

What it is: addition only, addressed by index, with a held-out split by construction. chain_sum
itself also subtracts (a model this small hardly ever samples a negative answer: such groups carry
no signal and validation stalled near 0.7), and its seeds share problems: with one digit, every
"held-out" item would have been trained on. Scored on the last number of the response.

Keeps: an item is a pure function of (index, seed, digits, held_out); no training item is ever a
held-out item, under any seed. May import: the standard library only.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import NamedTuple

WORDING = "State the final answer to the following arithmetic problem: {} ="
HELD_OUT_SHARE = 5  # one problem in five
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


class SumItem(NamedTuple):
    """One problem: the question text (no chat template applied) and the sum in digits."""

    prompt: str
    answer: str


def size(*, digits: int = 1, held_out: bool = False) -> int:
    """Return the number of distinct problems of the split (one digit: 80 and 20)."""
    return len(_order(0, digits=digits, held_out=held_out))


def item(index: int, seed: int, *, digits: int = 1, held_out: bool = False) -> SumItem:
    """Return problem `index` of the order that `seed` gives to the split.

    The indices of one round of `size()` name distinct problems; the next round repeats them.
    Raises ValueError for a negative index or a number of digits other than 1 and 2.
    """
    if index < 0:
        raise ValueError(f"sums_task.item: index must be >= 0, observed {index}")
    order = _order(seed, digits=digits, held_out=held_out)
    left, right = order[index % len(order)]
    return SumItem(WORDING.format(f"{left} + {right}"), str(left + right))


def parse_answer(response: str) -> str | None:
    """Return the last number of a response without its commas, or None if there is none."""
    found = _NUMBER.findall(response)
    return found[-1].replace(",", "") if found else None


def reward(response: str, answer: str) -> float:
    """Return 1.0 if the last number of the response equals the answer, else 0.0."""
    parsed = parse_answer(response)
    return 1.0 if parsed is not None and float(parsed) == float(answer) else 0.0


@lru_cache(maxsize=16)
def _order(seed: int, *, digits: int, held_out: bool) -> tuple[tuple[int, int], ...]:
    if digits not in (1, 2):
        raise ValueError(f"sums_task: digits must be 1 or 2, observed {digits}")
    numbers = range(0 if digits == 1 else 10, 10**digits)
    ranked = sorted(((a, b) for a in numbers for b in numbers), key=_digest)
    cut = len(ranked) // HELD_OUT_SHARE
    members = ranked[:cut] if held_out else ranked[cut:]
    # Ordering by keyed digest, not by random.shuffle: the same under every Python version.
    return tuple(sorted(members, key=lambda pair: _digest((*pair, seed))))


def _digest(key: tuple[int, ...]) -> bytes:
    return hashlib.sha256(f"sums:{key}".encode()).digest()
