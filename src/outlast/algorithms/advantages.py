"""Group-relative advantages: how much better a sibling did than the rest of its group.

Pure functions. They read only trained rewards and keep flags, which are part of the group record,
so a replayed step computes exactly the advantages of the first time. May import: torch.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["grpo", "rloo", "dr_grpo"]

STD_EPS = 1e-6
"""Added to the standard deviation, so that a nearly constant group does not explode."""


def group_advantages(rewards: Tensor, keep: Tensor, *, estimator: Estimator) -> Tensor:
    """Advantages float32 [G, N] from rewards [G, N] (any float dtype) and keep flags bool [G, N].

    With n kept siblings, mean m and sample standard deviation s over the kept rewards of a group:

    * ``grpo``: (r - m) / (s + eps). DeepSeekMath, arXiv:2402.03300, section 4.1.2 (outcome
      supervision); s divides by n - 1, as the common implementations do.
    * ``rloo``: r - mean of the *other* kept rewards = n / (n - 1) (r - m). arXiv:2402.14740,
      equation for RLOO in section 2.3 (k samples, leave-one-out baseline).
    * ``dr_grpo``: r - m, without the difficulty bias of the division by s (arXiv:2503.20783,
      section 3.2).

    Siblings that are not kept get 0 and do not enter the baseline. A group with fewer than two kept
    siblings, or with equal kept rewards, gets exactly 0 everywhere.
    """
    values, kept = rewards.to(torch.float64), keep.to(torch.bool)
    count = kept.sum(-1, keepdim=True).to(torch.float64)
    mean = torch.where(kept, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(kept, values - mean, 0.0)
    others = (count - 1).clamp(min=1)
    if estimator == "rloo":
        advantages = centred * count / others
    elif estimator == "grpo":
        advantages = centred / ((centred.square().sum(-1, keepdim=True) / others).sqrt() + STD_EPS)
    else:
        advantages = centred
    silent = zero_variance(values, kept)
    return torch.where(silent[..., None], 0.0, advantages).to(torch.float32)


def zero_variance(rewards: Tensor, keep: Tensor) -> Tensor:
    """Bool [G]: groups [G, N] whose kept rewards state no preference (all equal, or below two).

    Decided by comparison, not by a small deviation: rounding in the mean must not make signal.
    """
    kept = keep.to(torch.bool)
    highest = rewards.masked_fill(~kept, float("-inf")).amax(-1)
    lowest = rewards.masked_fill(~kept, float("inf")).amin(-1)
    return (kept.sum(-1) < 2) | (highest == lowest)
