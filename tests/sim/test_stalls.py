"""A run in which nothing moves says so (L4), and the loop is never held by the disk (P6)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, cast

import pytest

from outlast.ports import Weights
from outlast.telemetry import events
from outlast.testing import Answer, Simulation, TrainerFault
from outlast.testing.fake_engine import FakeEngine
from outlast.testing.shape import STALL_S
from outlast.testing.world import SimOffload


def small(**changes: object) -> Simulation:
    return Simulation(prompts=40, siblings=2, groups_per_step=2, steps=4, seed=3, **changes)  # type: ignore[arg-type]


def test_L4_work_in_flight_that_never_ends_is_reported_with_those_who_wait() -> None:
    sim = small(rollout_timeout_s=40_000.0)
    sim.engine.script(Answer(hangs=True), group=1)
    ended = sim.run()
    assert (ended.how, ended.exit_code) == ("StallAbort", 69)
    assert "train waits for groups for step 1" in ended.message
    assert any(isinstance(event, events.Stalled) for event in sim.events)
    assert "The last snapshot stands" in ended.message
    sim.resume(rollout_timeout_s=5.0, min_step_batch_fraction=0.5)
    assert sim.run().how == "finished"


def test_L4_one_response_that_takes_longer_than_the_time_out_is_no_stall() -> None:
    """Tokens are progress: rollouts of hours are what this is built for."""
    sim = small(rollout_timeout_s=40_000.0, response_tokens=200)
    sim.engine.script(Answer(latency_s=20 * STALL_S, chunks=200, tokens=200), group=0)
    assert sim.run().how == "finished"
    assert not any(isinstance(event, events.Stalled) for event in sim.events)
    assert sim.audit().ok


def test_L4_a_wedge_with_nothing_in_flight_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is what is committed and trained, not what is in flight."""
    update, calls = FakeEngine.update_weights, []

    async def hang(self: FakeEngine, weights: Weights, /) -> Any:
        calls.append(weights.version)
        if len(calls) == 2:
            await sim.life.loop.create_future()
        return await update(self, weights)

    monkeypatch.setattr(FakeEngine, "update_weights", hang)
    sim = small()
    ended = sim.run()
    assert (ended.how, ended.exit_code) == ("StallAbort", 69)
    (stalled,) = [event for event in sim.events if isinstance(event, events.Stalled)]
    assert dict(stalled.waiting)["rollout"].startswith("admission")
    assert dict(stalled.waiting)["weights"].startswith("engines to acknowledge")
    gauges = [event for event in sim.events if isinstance(event, events.Gauges)]
    assert gauges[-1].inflight_siblings == 0
    sim.resume()
    assert sim.run().how == "finished"


@pytest.mark.parametrize("life", [1, 2])
def test_L4_a_start_that_waits_for_an_engine_for_ever_is_reported(
    life: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first life, and in one that restores something."""
    sim = small()
    if life == 2:
        sim.run_until(step=2)
        sim.kill()

    async def hang(self: FakeEngine, weights: Weights, /) -> Any:
        await sim.life.loop.create_future()

    with monkeypatch.context() as patched:
        patched.setattr(FakeEngine, "update_weights", hang)
        if life == 2:
            sim.resume()
        ended = sim.run()
    assert (ended.how, ended.exit_code) == ("StallAbort", 69)
    assert "weights waits for engines to acknowledge" in ended.message
    sim.resume()
    assert sim.run().how == "finished"


def test_L4_a_replay_that_hangs_is_reported() -> None:
    sim = small(save_period=9, anchor_policy="replay", interval_s=0.5)
    sim.run_until(step=2)
    sim.run_until(snapshots=1)
    sim.kill()
    sim.trainer.faults[1] = TrainerFault.HANGS
    sim.resume()
    ended = sim.run()
    assert (ended.how, ended.exit_code) == ("StallAbort", 69)
    assert "replay waits for the trainer to execute step 1 again" in ended.message
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.audit().ok


def test_P6_no_call_to_the_disk_runs_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, segments, cuts, retention, sweeps, the lock: all of it runs where the loop goes on."""
    depth, calls, wrong = [0], [0], set[str]()
    real = SimOffload.__call__

    async def counted(self: SimOffload, work: Callable[..., Any], /, *a: Any, **kw: Any) -> Any:
        def inside(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                return work(*args, **kwargs)
            finally:
                depth[0] -= 1

        return await real(self, inside, *a, **kw)

    monkeypatch.setattr(SimOffload, "__call__", counted)
    sim = small(window=1, interval_s=0.3, keep_latest_k=1)
    for step in (2, 4):
        check = sim.disk.guard

        def guard(check: Callable[[], None] = check) -> None:
            check()
            calls[0] += 1
            if not depth[0] and not _by_a_fake_or_the_auditor():
                wrong.add(" < ".join(_frames()[:9]))

        sim.disk.guard = guard
        sim.run_until(step=step)
        if sim.running:
            sim.kill()
            sim.resume()
    assert calls[0] > 200
    assert wrong == set()


def _frames() -> list[str]:
    names, frame = list[str](), cast("FrameType | None", sys._getframe(2))
    while frame is not None:
        names.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
        frame = frame.f_back
    return names


def _by_a_fake_or_the_auditor() -> bool:
    """The fake trainer writes where it stands; a simulation looks at the disk from outside."""
    places = ("fake_trainer.py", "simulation.py:_check", "simulation.py:_survey")
    return any(place in name for name in _frames() for place in places)
