"""The public simulation API: what a user can script, drive and read."""

from __future__ import annotations

import doctest
from dataclasses import dataclass

import pytest

import outlast.testing
from outlast.model.samplers import InOrder
from outlast.ports import Rollout, RolloutRequest
from outlast.testing import (
    Answer,
    FakeEnvironment,
    Simulation,
    StoreSpeed,
    TrainerFault,
    TrainerProfile,
)


def test_the_example_in_the_package_runs() -> None:
    result = doctest.testmod(outlast.testing)
    assert result.attempted >= 7 and result.failed == 0


def small(**changes: object) -> Simulation:
    """Two prompts a step, two siblings, four steps, in order."""
    return Simulation(prompts=12, siblings=2, groups_per_step=2, steps=4, seed=3, **changes)  # type: ignore[arg-type]


def test_S1_an_undisturbed_run_trains_every_group_once_in_order() -> None:
    sim = small(window=0)
    assert (sim.run().how, sim.lives) == ("finished", 1)
    assert sim.trained == {1: (0, 1), 2: (2, 3), 3: (4, 5), 4: (6, 7)}
    assert sim.snapshots()[-1].verdict == "valid"
    assert sim.audit().ok


def test_S2_a_finished_sibling_is_not_generated_again() -> None:
    sim = small(window=0)
    sim.engine.script(Answer(latency_s=9.0), group=1)
    sim.run_until(when=lambda: len(sim.sealed.get(0, ())) == 2)
    sim.run_until(snapshots=1)
    sim.kill(power_cut=True)
    sim.resume()
    sim.run()
    again = [key for key in sim.dispatched if key.startswith("g0.")]
    assert again == []
    assert sim.restored[0].siblings_reused == 2
    assert sim.restored[0].siblings_redispatched == 2


def test_P1_level_prompt_group_starts_an_interrupted_group_over() -> None:
    sim = small(window=0, level="prompt_group")
    sim.engine.script(Answer(latency_s=0.1), group=0, sibling=0)
    sim.engine.script(Answer(latency_s=9.0), group=0, sibling=1)
    sim.run_until(when=lambda: sim.sealed.get(0) == (0,))
    sim.run_until(snapshots=1)
    sim.kill()
    sim.resume()
    sim.run()
    assert {key[:5] for key in sim.dispatched if key.startswith("g0.")} == {"g0.s0", "g0.s1"}


def test_S3_duplicate_and_foreign_answers_change_nothing_and_are_counted() -> None:
    sim = small()
    for group in range(8):
        sim.engine.script(Answer(duplicate=True, foreign=True), group=group)
    assert sim.run().how == "finished"
    outcomes = sim.auditor.tally.outcomes
    assert outcomes["late_duplicate"] + outcomes["late_stale"] >= 16
    assert outcomes["late_accepted"] == 0


def test_a_hanging_attempt_is_replaced_after_its_deadline() -> None:
    sim = small(rollout_timeout_s=5.0)
    sim.engine.script(Answer(hangs=True), group=0, sibling=1, attempt=0)
    assert sim.run().how == "finished"
    assert "g0.s1.i1.n1" in sim.dispatched
    assert 5.0 < sim.now < 60.0


def test_a_partial_stream_that_fails_is_tried_again() -> None:
    sim = small()
    sim.engine.script(Answer(fails_after=1), group=2, sibling=0, attempt=0)
    assert sim.run().how == "finished"
    assert "g2.s0.i1.n1" in sim.dispatched


def test_a_late_answer_of_an_aborted_group_does_not_end_the_run() -> None:
    sim = Simulation(
        prompts=40,
        siblings=2,
        groups_per_step=1,
        steps=6,
        sampler="windowed",
        window=0,
        seed=1,
        over_sampling_ratio=3.0,
        capacity=3,
    )
    for group in range(0, 40, 2):
        sim.engine.script(Answer(latency_s=30.0, late=True), group=group)
    assert sim.run().how == "finished"
    assert "stale" in sim.dropped.values()


@pytest.mark.parametrize("fault", list(TrainerFault))
def test_a_failing_trainer_costs_a_life_and_nothing_else(fault: TrainerFault) -> None:
    sim = small(trainer=TrainerProfile(faults={2: fault}))
    ended = sim.run()
    if fault is not TrainerFault.SLOW:
        assert ended.how != "finished"
        sim.resume()
        assert sim.run().how == "finished"
    assert sorted(sim.trained) == [1, 2, 3, 4]
    assert sim.audit().ok


def test_L3_sigterm_publishes_and_exits_75_in_every_phase() -> None:
    for tenth in range(1, 60, 4):
        sim = small(validation_period=1)
        if not sim.run_until(seconds=tenth / 10):
            break
        sim.sigterm()
        ended = sim.run()
        finishing = ended.how == "finished" and sorted(sim.trained) == [1, 2, 3, 4]
        assert ended.exit_code == 75 or finishing, f"{tenth / 10} s: {ended}"
        sim.resume()
        assert sim.run().how in ("finished", "nothing_to_do")


def test_L3_sigterm_while_the_optimizer_step_hangs_leaves_it_behind() -> None:
    sim = small(trainer=TrainerProfile(faults={2: TrainerFault.HANGS}), grace_s=20.0)
    sim.run_until(step=1)
    sim.run_until(seconds=30.0)
    sim.sigterm()
    before = sim.now
    assert sim.run().exit_code == 75
    assert sim.now - before <= 23.0
    sim.resume()
    assert sim.run().how == "finished"


def test_a_slow_store_delays_snapshots_and_nothing_else() -> None:
    sim = small(store=StoreSpeed(typical_s=0.01, slow_s=5.0, slow_share=0.3))
    assert sim.run().how == "finished"
    assert sim.audit().ok


def test_a_full_disk_skips_snapshots_and_training_goes_on() -> None:
    sim = small(save_period=9, anchor_policy="replay", interval_s=0.5)
    sim.run_until(snapshots=1)
    sim.fail_disk("ENOSPC")
    sim.run_until(step=3)
    assert sim.auditor.tally.outcomes["disk_full"] >= 1
    sim.fail_disk(None)
    assert sim.run().how == "finished"
    assert sim.audit().ok


def test_a_failing_disk_ends_the_life_with_74_and_loses_nothing() -> None:
    sim = small()
    sim.run_until(snapshots=1)
    sim.fail_disk("EIO")
    assert sim.run().exit_code == 74
    sim.fail_disk(None)
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.audit().ok


def test_a_kill_at_a_mark_or_a_disk_change_strikes_there() -> None:
    sim = small()
    sim.kill_at(mark=("train.after_claim", 2))
    assert "train.after_claim" in sim.run().message
    sim.resume()
    sim.kill_at(disk_change=5)
    assert sim.run().how == "killed"
    sim.resume()
    assert sim.run().how == "finished"


def test_a_lowered_capacity_still_owns_restored_groups() -> None:
    sim = Simulation(
        prompts=40,
        siblings=2,
        groups_per_step=1,
        steps=4,
        sampler="windowed",
        window=1,
        seed=5,
        over_sampling_ratio=3.0,
        capacity=6,
    )
    sim.engine.script(Answer(latency_s=30.0), group=0)
    sim.run_until(when=lambda: len(sim.sealed) == 6)
    sim.run_until(snapshots=1)
    sim.kill()
    sim.resume(capacity=1)
    assert sim.run().how == "finished"


def test_S7_a_life_on_the_trainer_checkpoint_makes_newer_snapshots_foreign() -> None:
    sim = small(save_period=1, interval_s=0.3)
    sim.run_until(step=2)
    sim.run_until(snapshots=2)
    sim.kill()
    sim.resume(restore_mode="trainer_checkpoint")
    sim.run_until(seconds=1.0)
    verdicts = {cut.name: cut.verdict for cut in sim.snapshots()}
    assert "foreign" in verdicts.values()
    sim.kill()
    sim.resume(restore_mode="latest")
    assert sim.run().how == "finished"
    assert sim.audit().ok


@dataclass(frozen=True)
class Boastful(InOrder):
    """A custom sampler with a bug: it promises no staleness, yet looks a step ahead."""

    @property
    def name(self) -> str:
        return "boastful"

    @property
    def max_lag(self) -> int | None:
        return 0


def test_S8_a_custom_sampler_that_breaks_its_promise_is_found() -> None:
    sim = small(sampler=lambda P: Boastful(P, 1))
    ended = sim.run()
    assert ended.exit_code == 70
    assert "S8" in ended.message and "boastful" in ended.message


class CountingEnvironment(FakeEnvironment):
    """A user's environment."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        self.asked += 1
        return await super().rollout(request)


def test_a_custom_environment_is_used_across_lives() -> None:
    environment = CountingEnvironment()
    sim = small(environment=environment)
    sim.run_until(step=2)
    sim.kill()
    sim.resume()
    sim.run()
    assert environment.asked >= 16
