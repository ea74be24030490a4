"""Policy losses as SUMS over tokens, with the normaliser of the whole step kept apart.

A chunk of a streamed step adds its sum; `finish_step` divides once by the normaliser of all chunks.
Therefore a streamed step equals the full batch up to the order of summation. May import: torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Normalisation = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLossConfig:
    """Coefficients of `policy_loss`; see `AlgorithmSection` of the recipe."""

    clip_low: float
    clip_high: float
    truncation: float
    importance_correction: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerms:
    """Per token, in the shape of the input: only `loss` carries a gradient."""

    loss: Tensor
    ratio: Tensor  # policy now / behaviour, after truncation
    clipped: Tensor  # bool: the clip removed the gradient of this token
    truncated: Tensor  # bool: the ratio was capped at `truncation`


def policy_loss(
    logprobs: Tensor, behaviour: Tensor, *, advantages: Tensor, config: PolicyLossConfig
) -> PolicyTerms:
    """Negative clipped surrogate per token; all inputs float32 of one shape, one entry per token.

    With r = exp(logprobs - behaviour), the policy now over the policy that sampled the token:

        loss = -min(r' A, clip(r', 1 - clip_low, 1 + clip_high) A)

    PPO's clipped surrogate (arXiv:1707.06347, eq. 7) as used by GRPO (arXiv:2402.03300, eq. 3) with
    the decoupled bounds of DAPO "clip-higher" (arXiv:2503.14476, eq. 10).

    r' caps r at `truncation` = C (truncated importance sampling, arXiv:1802.01561, section 4.1):
    beyond C the weight is the constant C and the gradient is C A grad logprobs, so it is bounded
    but not removed. The clip acts for A > 0 above 1 + clip_high and for A < 0 below 1 - clip_low;
    the cap is what bounds the other side, A < 0 with a large r. Dual-clip PPO
    (arXiv:1912.09729, eq. 5) bounds the same side by dropping the gradient; keeping it
    matters when sampler and trainer differ in precision, where r > C is noise and not progress.

    Without `importance_correction` r' is 1 by value (``exp(l - stop(l))``): the plain policy
    gradient, for data that the current policy sampled.
    """
    own = logprobs - logprobs.detach()
    if config.importance_correction:
        log_ratio = logprobs - behaviour
        truncated = log_ratio.detach() > math.log(config.truncation)
        log_ratio = torch.where(truncated, math.log(config.truncation) + own, log_ratio)
    else:
        log_ratio, truncated = own, torch.zeros_like(logprobs, dtype=torch.bool)
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    plain, clipped = ratio * advantages, bounded * advantages
    return PolicyTerms(
        loss=-torch.minimum(plain, clipped),
        ratio=ratio.detach(),
        clipped=(clipped < plain).detach(),
        truncated=truncated,
    )


def k3_kl(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference) on tokens of the policy; >= 0, unbiased.

    k3 = exp(d) - d - 1 with d = reference - logprobs (J. Schulman, "Approximating KL divergence",
    2020; arXiv:2402.03300, eq. 4). `reference` carries no gradient.
    """
    difference = (reference - logprobs).clamp(max=20.0)  # exp stays finite on absurd tokens
    return torch.expm1(difference) - difference


def token_weights(mask: Tensor, normalisation: Normalisation) -> Tensor:
    """Weight float32 [B, T] of each token in the sum, from the valid-token mask bool [B, T].

    ``token``: 1 per valid token; the step averages over its tokens (DAPO, arXiv:2503.14476,
    eq. 12).
    ``sequence``: 1 / valid tokens of the sequence; the step averages over sequences
    (GRPO, arXiv:2402.03300, eq. 3).
    """
    weights = mask.to(torch.float32)
    if normalisation == "sequence":
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    return weights


def normaliser(mask: Tensor, normalisation: Normalisation) -> int:
    """What the sums of mask bool [B, T] are divided by: its valid tokens, or sequences with any."""
    return int((mask if normalisation == "token" else mask.any(-1)).sum())
