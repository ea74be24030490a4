"""Sampling one token per row from logits, each row from a random stream of its own.

Token i of a request is drawn with the number `uniforms(key, i)`: a pure function of the request's
seed and the position, so nothing else in the batch can shift it. May import: torch, numpy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UInt64 = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def stream_key(seed: int) -> int:
    """A 64-bit stream key for any Python integer, near seeds far apart (blake2b)."""
    return int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=8).digest(), "little")


def uniforms(keys: UInt64, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Float64 [n] in [0, 1): number `positions[k]` of stream `keys[k]`.

    SplitMix64 (Steele, Lea, Flood 2014, figure 17) addressed by counter; 53 bits are used.
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is the algorithm
        z = keys + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _MIX_1
        z = (z ^ (z >> np.uint64(27))) * _MIX_2
        z = z ^ (z >> np.uint64(31))
    return np.asarray((z >> np.uint64(11)).astype(np.float64) * 2.0**-53)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """Per-row sampling settings, all of length n; temperature 0 is greedy, top_k 0 is off."""

    temperature: NDArray[np.float32]
    top_p: NDArray[np.float32]
    top_k: NDArray[np.int64]
    uniform: NDArray[np.float64]


def sample(logits: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """Token ids int64 [n] and their log-probabilities float32 [n] from float32 logits [n, V].

    The log-probability is that of the *policy*: log_softmax(logits / temperature) over the whole
    vocabulary, before top-k and top-p cut it, with temperature 1 for greedy rows. The trainer
    recomputes exactly this quantity. Sampling inverts the cumulative distribution at `uniform`.
    """
    device = logits.device
    greedy = rows.temperature == 0
    divisor = np.where(greedy, np.float32(1), rows.temperature)
    if (divisor != 1).any():
        logits = logits / torch.from_numpy(divisor).to(device)[:, None]
    logprobs = torch.log_softmax(logits, -1)
    if greedy.all():
        tokens = logprobs.argmax(-1)
    else:
        truncated = ((rows.top_p < 1) | (rows.top_k > 0)) & ~greedy
        tokens = _draw(logprobs, rows, truncated=bool(truncated.any()))
        if greedy.any():
            best = logprobs.argmax(-1)
            tokens = torch.where(torch.from_numpy(greedy).to(device), best, tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _draw(logprobs: Tensor, rows: SamplingRows, *, truncated: bool) -> Tensor:
    plain = _invert(logprobs.exp(), rows.uniform)
    if not truncated:
        return plain
    # Rows that cut their distribution use sorted order, the others must not notice the company.
    device = logprobs.device
    cut = torch.from_numpy((rows.top_p < 1) | (rows.top_k > 0)).to(device)
    order = logprobs.argsort(dim=-1, descending=True, stable=True)
    ranked = logprobs.gather(-1, order).exp()
    before = ranked.cumsum(-1, dtype=torch.float64) - ranked
    limit = torch.from_numpy(np.where(rows.top_k > 0, rows.top_k, logprobs.shape[-1])).to(device)
    rank = torch.arange(logprobs.shape[-1], device=device)
    top_p = torch.from_numpy(rows.top_p).to(device)[:, None]
    allowed = (rank < limit[:, None]) & ((before < top_p) | (top_p >= 1))
    allowed[:, 0] = True
    chosen = _invert(torch.where(allowed, ranked, 0.0), rows.uniform)
    return torch.where(cut, order.gather(-1, chosen[:, None])[:, 0], plain)


def _invert(probabilities: Tensor, uniform: NDArray[np.float64]) -> Tensor:
    # Double precision: a float32 running sum over 50,000 tokens loses the rare ones.
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    point = torch.from_numpy(uniform).to(cumulative.device)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, point, right=True)[:, 0]
    return tokens.clamp(max=probabilities.shape[-1] - 1)
