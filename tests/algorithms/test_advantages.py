"""Group advantages against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from outlast.algorithms.advantages import STD_EPS, Estimator, group_advantages, zero_variance

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [3.0, 1.0, 2.0, 0.0]])
ALL = torch.ones(2, 4, dtype=torch.bool)


def test_grpo_divides_by_the_sample_deviation() -> None:
    observed = group_advantages(REWARDS, ALL, estimator="grpo")
    first = 0.5 / (math.sqrt(4 * 0.25 / 3) + STD_EPS)
    second = 1 / (math.sqrt(5 / 3) + STD_EPS)
    expected = [
        [first, -first, -first, first],
        [1.5 * second, -0.5 * second, 0.5 * second, -1.5 * second],
    ]
    torch.testing.assert_close(observed, torch.tensor(expected))
    assert observed.dtype == torch.float32


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    observed = group_advantages(REWARDS, ALL, estimator="rloo")
    for group, rewards in enumerate(REWARDS.tolist()):
        for sibling, reward in enumerate(rewards):
            others = rewards[:sibling] + rewards[sibling + 1 :]
            assert observed[group, sibling].item() == pytest.approx(reward - sum(others) / 3)


def test_dr_grpo_only_subtracts_the_mean() -> None:
    observed = group_advantages(REWARDS, ALL, estimator="dr_grpo")
    torch.testing.assert_close(observed, REWARDS - torch.tensor([[0.5], [1.5]]))


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "dr_grpo"])
def test_siblings_that_are_not_kept_count_nowhere(estimator: Estimator) -> None:
    keep = torch.tensor([[True, True, False, True]])
    observed = group_advantages(torch.tensor([[1.0, 0.0, 99.0, 2.0]]), keep, estimator=estimator)[0]
    alone = group_advantages(
        torch.tensor([[1.0, 0.0, 2.0]]), keep[:, [0, 1, 3]], estimator=estimator
    )[0]
    assert observed[2] == 0
    torch.testing.assert_close(observed[[0, 1, 3]], alone)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "dr_grpo"])
def test_groups_without_preference_are_exactly_zero(estimator: Estimator) -> None:
    # The mean of seven times 0.1 is not 0.1 in floating point: no signal may come of it.
    equal = torch.full((1, 7), 0.1)
    assert not group_advantages(
        equal, torch.ones(1, 7, dtype=torch.bool), estimator=estimator
    ).any()
    single = torch.tensor([[True] + [False] * 3])
    assert not group_advantages(REWARDS[1:], single, estimator=estimator).any()
    assert not group_advantages(
        REWARDS[1:], torch.zeros(1, 4, dtype=torch.bool), estimator=estimator
    ).any()


def test_zero_variance_looks_at_kept_siblings_only() -> None:
    rewards = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [2.0, 2.0, 2.0]])
    keep = torch.tensor([[True, True, False], [True, True, True], [True, True, True]])
    assert zero_variance(rewards, keep).tolist() == [True, False, True]
