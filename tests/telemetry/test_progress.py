"""The fold behind the live display and `status`."""

from __future__ import annotations

import pytest

from outlast.telemetry import events
from outlast.telemetry.progress import Progress
from tests.telemetry import samples


def fold(*stream: events.AnyEvent) -> Progress:
    progress = Progress()
    for second, event in enumerate(stream):
        progress(event, 100.0 + second)
    return progress


def test_a_step_shows_the_reward_of_the_groups_it_trained() -> None:
    progress = fold(
        samples.committed(1, 0.25),
        samples.committed(2, 0.75),
        samples.committed(3, 9.0),
        samples.sealed(tokens=300),
        samples.step(5, groups=(1, 2)),
    )
    step = progress.last_step
    assert step is not None
    assert step.reward == pytest.approx(0.5)
    assert (step.tokens, step.tokens_per_s) == (300, pytest.approx(150.0))
    assert list(progress.rewards) == pytest.approx([0.5])


def test_the_trainer_metric_wins_and_unknown_rewards_stay_unknown() -> None:
    event = events.StepFinished(
        step=1,
        groups=(7,),
        chunks=(1,),
        metrics={"reward_mean": 0.9},
        lags=(),
        wait_s=0.0,
        train_s=0.0,
    )
    assert fold(samples.committed(7, 0.1), event).rewards[-1] == 0.9
    unknown = fold(samples.step(1))  # its groups were committed in an earlier life
    assert unknown.last_step is not None and unknown.last_step.reward is None
    assert not unknown.rewards


def test_everything_is_folded() -> None:
    progress = fold(*samples.one_of_each())
    assert progress.started_wall == 100.0
    assert progress.version == 13 and progress.served == 12
    assert progress.dropped == {"stale": 1}
    assert progress.failures == {"infrastructure": 1}
    assert progress.skipped == {"disk_full": 1}
    assert progress.snapshot == samples.published()
    assert progress.validations == [samples.validation()]
    assert progress.ended is not None and progress.ended.last_cut == "snapshot_000008"
    assert progress.last_wall == 120.0
