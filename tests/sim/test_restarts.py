"""Small restarts with the value they must have: cursors, restored buffers, open steps, duties.

Each is a fault that other systems had in public (`docs/known-failures.md`); the kind is ruled out
by the swarm, the small case says what a user would have seen.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from outlast.model.groups import GroupState
from outlast.model.ids import Step
from outlast.telemetry import events
from outlast.testing import Answer, EngineProfile, Simulation, StoreSpeed
from outlast.testing.fake_trainer import FakeTrainer
from outlast.testing.shape import settings_of

SAMPLERS = ("in_order", "weight_fifo", "ready_first", "windowed")
EACH_SAMPLER = pytest.mark.parametrize("sampler", SAMPLERS)


def small(**changes: object) -> Simulation:
    """Two prompts a step, two siblings, one step ahead."""
    given: dict[str, object] = {"prompts": 12, "siblings": 2, "groups_per_step": 2, "steps": 4}
    return Simulation(seed=3, **(given | changes))  # type: ignore[arg-type]


def groups_of(keys: list[str]) -> list[int]:
    """Group ids of attempt keys such as ``g3.s1.i2.n0``, in order of their first attempt."""
    return list(dict.fromkeys(int(key.split(".")[0][1:]) for key in keys))


def uses(sim: Simulation) -> Counter[int]:
    """How often each group was trained along the lineage."""
    return Counter(group for groups in sim.trained.values() for group in groups)


@cache
def order_of(**shape: object) -> dict[int, tuple[int, ...]]:
    """What an undisturbed run trains."""
    sim = small(**shape)
    assert sim.run().how == "finished"
    return sim.trained


# ------------------------------------------------------------------------------------ the cursor


@pytest.mark.parametrize("step", [3, 4, 6])
def test_S4_two_epochs_with_a_kill_train_every_prompt_twice_in_the_same_order(step: int) -> None:
    """A kill in mid-epoch, exactly at its end (step 4 of 8), and behind it."""
    shape: dict[str, object] = {"prompts": 8, "epochs": 2, "steps": 99, "window": 0}
    sim = small(**shape)
    sim.run_until(step=step)
    sim.run_until(seconds=0.6)
    sim.kill()
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.trained == order_of(**shape)
    assert uses(sim) == Counter(range(16))  # group n is draw n: each prompt once per epoch
    assert sim.audit().ok


def test_S4_a_run_that_ended_with_its_data_does_not_start_over() -> None:
    sim = small(prompts=8, epochs=1, steps=99)
    ended = sim.run()
    assert (ended.how, ended.exit_code) == ("finished", 0)
    assert "data" in ended.message and "4 of 99" in ended.message, "it says why it ended"
    sim.resume()
    again = sim.run()
    assert again.exit_code == 0
    assert sim.dispatched == []
    assert sim.trained.keys() == {1, 2, 3, 4}


def test_the_end_at_the_target_says_so() -> None:
    assert small().run().message == "the run reached its target, step 4"


def test_a_target_that_is_reached_already_touches_nothing() -> None:
    sim = small()
    sim.run()
    before = {path: data for path, data in sim.disk.visible().signature() if "lock" not in path}
    sim.resume()
    ended = sim.run()
    assert (ended.how, ended.exit_code) == ("nothing_to_do", 0)
    assert "at step 4, its target is 4" in ended.message
    after = {path: data for path, data in sim.disk.visible().signature() if "lock" not in path}
    assert after == before


def test_a_raised_target_goes_on_with_what_was_left_over() -> None:
    sim = small(window=1)
    sim.run()
    left = sorted(sim.sealed)
    assert left, "one step ahead, so something is left when the target is reached"
    sim.resume(steps=6)
    assert sim.run().how == "finished"
    again = groups_of(sim.dispatched)
    assert not set(again) & {g for g in left if len(sim.sealed.get(g, ())) == 2}
    assert uses(sim) == Counter(range(12))


@EACH_SAMPLER
def test_S4_prompts_that_were_drawn_but_not_sent_come_before_new_ones(sampler: str) -> None:
    """One group in flight at a time: the others are owned and wait when the kill comes."""
    sim = small(sampler=sampler, inflight=1, capacity=4)
    sim.run_until(snapshots=1)
    known = sim.auditor.shadow.known
    waiting = [group for group, sealed in sim.sealed.items() if len(sealed) < 2]
    assert len(waiting) > 1
    sim.kill()
    sim.resume()
    sim.run_until(when=lambda: any(group >= known for group in groups_of(sim.dispatched)))
    first = groups_of(sim.dispatched)
    assert set(waiting) <= set(first[: len(waiting)]) | set(uses(sim))
    assert sim.run().how == "finished"


# --------------------------------------------------------------------------- restored work


@EACH_SAMPLER
@pytest.mark.parametrize("power_cut", [False, True])
def test_P1_what_stood_ready_is_trained_without_a_single_new_request(
    sampler: str, power_cut: bool
) -> None:
    """The buffer holds whole steps at the kill; the next step trains those very groups."""
    sim = small(sampler=sampler, window=1, capacity=4, interval_s=0.5)
    sim.trainer.chunk_s = 60.0
    sim.run_until(when=lambda: sum(len(sealed) == 2 for sealed in sim.sealed.values()) >= 4)
    sim.run_until(snapshots=1)
    ready = {group for group, sealed in sim.sealed.items() if len(sealed) == 2}
    sim.kill(power_cut=power_cut)
    sim.trainer.chunk_s = 0.2
    sim.resume()
    sim.run_until(step=1)
    assert set(sim.trained[1]) <= ready
    assert not set(groups_of(sim.dispatched)) & ready
    assert sim.run().how == "finished"
    assert max(uses(sim).values()) == 1


def test_a_selected_group_is_owned_by_its_step_before_anything_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between selection and claim a sampler could evict what was selected."""
    sim = small()
    begin, owned = FakeTrainer.begin_step, []

    async def begin_step(self: FakeTrainer, step: Step, /) -> None:
        board = sim.life.controller.board
        assert board is not None
        owned.append(board.count(GroupState.CLAIMED))
        await begin(self, step)

    monkeypatch.setattr(FakeTrainer, "begin_step", begin_step)
    assert sim.run().how == "finished"
    assert len(owned) == 4 and all(owned)


MARKS = (
    *("train.after_claim", "train.accumulated", "train.before_finish", "train.after_finish"),
    *("train.applied", "checkpoint.staged", "checkpoint.written", "checkpoint.published"),
    *("weights.before_push", "weights.pushed"),
)


@pytest.mark.parametrize("policy", ["exact", "replay"])
@pytest.mark.parametrize("mark", MARKS)
def test_S1_a_step_counts_once_wherever_it_is_cut(mark: str, policy: str) -> None:
    """Chunks of one group: at the kill some had given gradients, or the optimizer had stepped."""
    shape: dict[str, object] = {
        "groups_per_step": 4,
        "prompts": 16,
        "window": 0,
        "anchor_policy": policy,
        "save_period": 1 if policy == "exact" else 3,
        "interval_s": 0.2,
    }
    sim = small(**shape)
    sim.run_until(step=1)
    sim.kill_at(mark=(mark, sim.marks._life[mark] + 2))
    assert sim.run().how == "killed"
    sim.resume()
    assert sim.run().how in ("finished", "nothing_to_do")
    assert sim.trained == order_of(**shape)


@EACH_SAMPLER
def test_a_sibling_that_stalls_for_many_steps(sampler: str) -> None:
    """Waited for, trained old, or dropped as stale: by rule, and never the end of the run."""
    sim = small(sampler=sampler, prompts=60, steps=12, window=2, rollout_timeout_s=90.0)
    sim.engine.script(Answer(latency_s=40.0), group=1, sibling=1)
    sim.run_until(seconds=6.0)
    sim.kill()
    sim.resume()
    assert sim.run().how == "finished"
    assert max(uses(sim).values()) == 1
    if sampler == "in_order":
        assert 1 in sim.trained[1]
    assert sim.dropped.get(1, "stale") == "stale"
    assert sim.audit().ok


@pytest.mark.parametrize("replace", [False, True])
def test_a_sibling_that_never_answers_ends_by_its_budget_in_any_life(replace: bool) -> None:
    sim = small(
        rollout_timeout_s=5.0,
        infrastructure_attempts=4,
        replace_dropped=replace,
        min_step_batch_fraction=0.5,
    )
    sim.engine.script(Answer(hangs=True), group=1, sibling=0)
    sim.run_until(seconds=13.0)
    spent = sum(key.startswith("g1.s0.") for key in sim.dispatched)
    assert 2 <= spent < 4
    sim.run_until(snapshots=1)
    sim.kill()
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.dropped == {1: "gave_up"}
    later = sum(key.startswith("g1.s0.") for key in sim.dispatched)
    assert later < 4, "failures before the kill count"
    assert len(sim.trained[1]) == (2 if replace else 1)


def test_a_stop_request_is_no_failure_of_what_it_interrupts() -> None:
    sim = small()
    sim.engine.script(Answer(latency_s=9.0), group=0)
    for _ in range(4):
        sim.run_until(seconds=2.0)
        sim.sigterm()
        assert sim.run().exit_code == 75
        failed = [e for e in sim.events if isinstance(e, events.AttemptFailed)]
        assert failed == [] and sim.dropped == {}
        sim.resume()
    assert sim.run().how == "finished"
    assert sim.dropped == {} and 0 in sim.trained[1]


# ----------------------------------------------------------------------- duties and fairness


def test_a_validation_that_a_kill_prevented_runs_once_after_it() -> None:
    sim = small(validation_period=2, save_period=1)
    sim.kill_at(mark=("checkpoint.published", 2))
    sim.run()
    seen = [e.version for e in sim.events if isinstance(e, events.ValidationFinished)]
    sim.resume()
    assert sim.run().how == "finished"
    seen += [e.version for e in sim.events if isinstance(e, events.ValidationFinished)]
    assert sorted(set(seen)) == seen, "none twice"
    assert seen[0] == 0 and seen[-1] == 4
    assert any(2 <= version < 4 for version in seen), "the one that was due"


@pytest.mark.parametrize("sampler", ["in_order", "ready_first"])
def test_slow_prompts_are_not_left_out(sampler: str) -> None:
    """Every third prompt takes ten times as long; nothing is dropped for it."""
    sim = small(sampler=sampler, prompts=24, epochs=1, steps=99, window=2)
    for group in range(0, 24, 3):
        sim.engine.script(Answer(latency_s=10.0), group=group)
    sim.run_until(step=3)
    sim.kill()
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.dropped == {} and uses(sim) == Counter(range(24))


def test_slow_saves_do_not_shift_the_cadence() -> None:
    """Attempts stay on multiples of the interval; one that is missed is left out, not made up."""
    sim = small(
        interval_s=2.0,
        steps=30,
        prompts=60,
        save_period=50,
        anchor_policy="replay",
        max_replay_steps=50,
        store=StoreSpeed(typical_s=0.4),
        engine=EngineProfile(latency_s=2.0),
    )
    begun: list[float] = []

    def watch() -> bool:
        if sim.marks.hits["snapshot.cut"] > len(begun):
            begun.append(sim.now)
        return False

    sim.run_until(when=watch)
    gaps = [later - earlier for earlier, later in pairwise(begun[:-1])]
    assert len(gaps) > 5
    assert all(abs(gap / 2.0 - round(gap / 2.0)) < 1e-6 for gap in gaps), gaps


def test_the_time_to_save_by_begins_before_loading_and_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scheduler counts from the start of the job, however long its start takes."""
    sim = small(steps=8, prompts=40, save_period=9, anchor_policy="replay", interval_s=0.5)
    sim.run_until(step=4)
    sim.run_until(snapshots=1)
    sim.kill()
    limited = replace(
        settings_of(sim.shape, seed=sim.seed, sampler=None), must_save_by_s=30.0, grace_s=10.0
    )
    monkeypatch.setattr("outlast.testing.simulation.settings_of", lambda *a, **kw: limited)
    sim.trainer.finish_s = 200.0
    sim.resume()
    began = sim.now
    ended = sim.run()
    assert (ended.how, ended.message) == ("preempted", "checkpoint_must_save_by")
    assert not [e for e in sim.events if isinstance(e, events.StepFinished)]
    assert sim.now - began < 300.0, "one step of the replay at most"
    monkeypatch.undo()
    sim.trainer.finish_s = 0.3
    sim.resume()
    assert sim.run().how == "finished"
