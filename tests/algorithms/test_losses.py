"""Policy losses: hand-computed values, gradients by autograd, and sums that can be split."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from outlast.algorithms.losses import (
    PolicyLossConfig,
    k3_kl,
    normaliser,
    policy_loss,
    token_weights,
)

CONFIG = PolicyLossConfig(clip_low=0.2, clip_high=0.28, truncation=2.0, importance_correction=True)
PLAIN = PolicyLossConfig(clip_low=0.2, clip_high=0.28, truncation=2.0, importance_correction=False)


def at_ratio(
    ratio: float, advantage: float, config: PolicyLossConfig = CONFIG
) -> tuple[float, float]:
    """Loss and d loss / d logprob of one token whose policy / behaviour ratio is `ratio`."""
    behaviour = torch.tensor([-1.5])
    logprob = (behaviour + math.log(ratio)).requires_grad_()
    terms = policy_loss(logprob, behaviour, advantages=torch.tensor([advantage]), config=config)
    (gradient,) = torch.autograd.grad(terms.loss.sum(), logprob)
    return terms.loss.item(), gradient.item()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.1, 2.0, -2.2, -2.2),  # inside: -r A, and its derivative is itself
        (0.9, -1.0, 0.9, 0.9),
        (1.5, 2.0, -2.56, 0.0),  # A > 0 above 1 + clip_high: constant
        (0.5, 2.0, -1.0, -1.0),  # A > 0 below: min takes the plain term
        (0.5, -1.0, 0.8, 0.0),  # A < 0 below 1 - clip_low: constant
        (1.5, -1.0, 1.5, 1.5),  # A < 0 above: not clipped ...
        (50.0, -1.0, 2.0, 2.0),  # ... but truncated: weight C, gradient C A
        (50.0, 2.0, -2.56, 0.0),
    ],
)
def test_clip_and_truncation(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    observed = at_ratio(ratio, advantage)
    assert observed == pytest.approx((loss, gradient), rel=1e-5)


def test_truncation_below_the_clip_keeps_the_gradient() -> None:
    config = PolicyLossConfig(
        clip_low=0.2, clip_high=4.0, truncation=2.0, importance_correction=True
    )
    assert at_ratio(3.0, 1.0, config) == pytest.approx((-2.0, -2.0), rel=1e-5)


def test_enormous_ratios_stay_finite() -> None:
    logprob = torch.tensor([-0.1], requires_grad=True)
    terms = policy_loss(
        logprob, torch.tensor([-500.0]), advantages=torch.tensor([-1.0]), config=CONFIG
    )
    terms.loss.sum().backward()
    assert terms.ratio.item() == pytest.approx(2.0)
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(2.0)


def test_without_correction_it_is_the_policy_gradient() -> None:
    assert at_ratio(1.7, 2.0, PLAIN) == pytest.approx((-2.0, -2.0))


def test_flags_count_what_happened() -> None:
    behaviour = torch.zeros(4)
    logprobs = torch.tensor([1.5, 3.0, 0.5, 1.0]).log()
    terms = policy_loss(
        logprobs, behaviour, advantages=torch.tensor([1.0, -1.0, -1.0, 1.0]), config=CONFIG
    )
    assert terms.clipped.tolist() == [True, False, True, False]
    assert terms.truncated.tolist() == [False, True, False, False]


def test_on_policy_gradient_equals_reinforce() -> None:
    torch.manual_seed(0)
    logits = torch.randn(5, 7, requires_grad=True)
    tokens, advantages = torch.randint(7, (5,)), torch.randn(5)
    logprobs = torch.log_softmax(logits, -1).gather(1, tokens[:, None])[:, 0]
    loss = policy_loss(logprobs, logprobs.detach(), advantages=advantages, config=CONFIG).loss.sum()
    (ours,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (reinforce,) = torch.autograd.grad(-(advantages * logprobs).sum(), logits)
    torch.testing.assert_close(ours, reinforce)


def test_k3_is_an_unbiased_estimate_of_the_divergence() -> None:
    policy, reference = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    exact = (policy * (policy / reference).log()).sum()
    per_token = k3_kl(policy.log(), reference.log())
    assert (per_token >= 0).all()
    # Its expectation under the policy is the divergence, because the ratios average to one.
    torch.testing.assert_close((policy * per_token).sum(), exact)
    assert k3_kl(policy.log(), policy.log()).abs().max() == 0


def test_k3_gradient() -> None:
    logprob = torch.tensor([-1.0], requires_grad=True)
    k3_kl(logprob, torch.tensor([-2.0])).backward()
    assert logprob.grad is not None
    assert logprob.grad.item() == pytest.approx(1 - math.exp(-1.0))


MASK = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])


def mean(values: Tensor, parts: list[slice], kind: str) -> float:
    """The normalised sum, added up part by part as a streamed step does."""
    total, count = 0.0, 0
    for part in parts:
        weights = token_weights(MASK[part], kind)  # type: ignore[arg-type]
        total += (weights * values[part]).sum().item()
        count += normaliser(MASK[part], kind)  # type: ignore[arg-type]
    return total / count


def test_token_normalisation_is_the_mean_over_valid_tokens() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    expected = (0 + 1 + 3 + 5) / 4
    assert mean(values, [slice(0, 3)], "token") == pytest.approx(expected)
    assert mean(values, [slice(0, 1), slice(1, 3)], "token") == pytest.approx(expected)


def test_sequence_normalisation_is_the_mean_of_sequence_means() -> None:
    values = torch.arange(12.0).reshape(3, 4)
    expected = ((0 + 1 + 3) / 3 + 5) / 2  # the empty third sequence does not count
    assert mean(values, [slice(0, 3)], "sequence") == pytest.approx(expected)
    assert mean(values, [slice(0, 2), slice(2, 3)], "sequence") == pytest.approx(expected)
