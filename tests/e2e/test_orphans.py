"""`kill -9` leaves no process of Outlast, and one that a user's reward forked does not matter.

Engine, trainer and environment are threads of the one process, so there is nothing to outlive it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.testing.chaos import run_campaign
from outlast.testing.chaos_blows import Kind
from outlast.testing.chaos_verdict import Campaign
from tests.e2e.program import SMALL

FORKING = """
import multiprocessing, threading, time
lock, workers = threading.Lock(), []

def reward(response, fields):
    with lock:
        if not workers:
            worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
            worker.daemon = True
            worker.start()
            workers.append(worker)
    return float(len(response) % 2)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_run_goes_on_beside_a_worker_that_its_reward_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forking_reward.py").write_text(FORKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    overrides = (
        *SMALL,
        "environment.reward=forking_reward:reward",
        "algorithm.max_num_steps=30",
    )
    campaign = Campaign(
        kills=1, kinds=(Kind.TIMER,), seed=3, overrides=overrides, life_s=1.0, to_the_end=False
    )
    verdict = run_campaign(campaign, tmp_path / "runs")
    assert verdict.violations == [] and verdict.kills == 1 and verdict.lives >= 2
    assert any("life 1" in orphan for orphan in verdict.orphans), verdict.orphans
