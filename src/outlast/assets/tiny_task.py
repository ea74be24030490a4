"""The task of the tiny recipe: add four digits modulo ten, thinking aloud or not.

What it is: problems such as ``3+5+2+7=`` addressed by index, the parser of the answer, and the
0/1 reward. A response may answer at once (``>7``) or write its running sums first (``8;0;7>7``);
only the digit after ``>`` is scored, so a policy has to discover that thinking pays.

Keeps: an item is a pure function of (index, seed, held_out); no training item is ever a held-out
item, under any seed. May import: the standard library only.
"""

from __future__ import annotations

import hashlib
import math
import re
from functools import lru_cache
from typing import NamedTuple

HELD_OUT_SIZE = 1_000
TRAIN_SIZE = 9_000
_ANSWER = re.compile(r">\s*(\d)\s*$")


class TinyItem(NamedTuple):
    """One problem: the exact prompt text and the digit that answers it."""

    prompt: str
    answer: str


def size(*, held_out: bool = False) -> int:
    """Return the number of distinct problems of the split."""
    return HELD_OUT_SIZE if held_out else TRAIN_SIZE


def item(index: int, seed: int, *, held_out: bool = False) -> TinyItem:
    """Return problem `index` of the order that `seed` gives to the split.

    Any index >= 0 is valid; the indices of one whole round of `size()` name distinct problems,
    and index `size()` begins the same round again. Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"tiny_task.item: index must be >= 0, observed {index}")
    members = _splits()[0 if held_out else 1]
    key = int.from_bytes(hashlib.sha256(f"tiny-order:{seed}".encode()).digest(), "big")
    offset, stride = key % len(members), _coprime_stride(key >> 64, len(members))
    digits = f"{members[(offset + index * stride) % len(members)]:04d}"
    return TinyItem("+".join(digits) + "=", str(sum(map(int, digits)) % 10))


def parse_answer(response: str) -> str | None:
    """Return the digit after the final ``>`` of a response text, or None if it gives none."""
    found = _ANSWER.search(response)
    return found.group(1) if found else None


def reward(response: str, answer: str) -> float:
    """Return 1.0 if the response ends in the right answer, else 0.0."""
    return 1.0 if parse_answer(response) == answer else 0.0


def thinking(prompt: str) -> str:
    """Return the step-by-step response, its running sums before the answer: ``8;0;7>7``."""
    first, *rest = (int(digit) for digit in prompt.rstrip("=").split("+"))
    sums = []
    for digit in rest:
        first = (first + digit) % 10
        sums.append(str(first))
    return f"{';'.join(sums)}>{sums[-1]}"


def _coprime_stride(key: int, modulus: int) -> int:
    # A stride coprime with the size visits every member once per round, without a stored order.
    stride = key % modulus or 1
    while math.gcd(stride, modulus) != 1:
        stride = stride % modulus + 1
    return stride


@lru_cache(maxsize=1)
def _splits() -> tuple[tuple[int, ...], tuple[int, ...]]:
    # Ordering by digest makes the split independent of the digits and of Python's version.
    ranked = sorted(range(10_000), key=lambda n: hashlib.sha256(f"tiny:{n:04d}".encode()).digest())
    return tuple(ranked[:HELD_OUT_SIZE]), tuple(ranked[HELD_OUT_SIZE:])
