"""Two controllers on one run directory: the new one never notices, the old one says who has it.

A lock does not reach across every file system, and a process may stand still for minutes.
"""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest

from outlast.durable.audit import audit_run
from outlast.testing.life import RUN_DIR
from outlast.testing.scripts import EngineProfile
from outlast.testing.simulation import Simulation
from outlast.testing.takeover import Replaced, take_over

SEEDS = 40


def scene(seed: int) -> tuple[Simulation, random.Random]:
    rng = random.Random(f"two controllers/{seed}")
    sim = Simulation(
        prompts=24,
        siblings=2,
        groups_per_step=2,
        steps=6,
        sampler=rng.choice(["in_order", "windowed", "weight_fifo", "ready_first"]),
        level=rng.choice(["token", "sibling", "prompt_group"]),
        interval_s=rng.choice([0.3, 1.0]),
        seed=seed,
    )
    return sim, rng


def taken_over(sim: Simulation, rng: random.Random) -> Replaced:
    sim.run_until(seconds=rng.uniform(0.0, 4.0))
    replaced = take_over(sim)
    sim.run_until(seconds=rng.uniform(0.0, 6.0))
    return replaced


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_new_controller_does_not_notice_the_old_one(seed: int) -> None:
    sim, rng = scene(seed)
    replaced = taken_over(sim, rng)
    while sim.running and replaced.ended is None:  # they take turns
        replaced.wake(seconds=rng.uniform(0.1, 3.0))
        if sim.running and replaced.ended is None:
            sim.run_until(seconds=rng.uniform(0.1, 3.0))
    replaced.wake(seconds=1000)
    if sim.running:
        sim.run()
    assert sim.ended[-1].how == "finished"
    assert replaced.ended is not None
    assert (replaced.ended.how, replaced.ended.exit_code) == ("Fenced", 65), replaced.ended
    assert sorted(sim.trained) == [1, 2, 3, 4, 5, 6]
    assert sim.audit().ok
    replaced.disk.guard = lambda: None
    assert audit_run(replaced.disk, RUN_DIR).ok


def test_a_replaced_controller_writes_neither_its_end_nor_the_lock() -> None:
    sim, _ = scene(3)
    sim.run_until(step=2)
    replaced = take_over(sim)
    sim.run_until(step=3)
    before = {path: sim.disk.read(path) for path in _owned(sim)}
    replaced.wake(seconds=1000)
    assert replaced.ended is not None and replaced.ended.how == "Fenced"
    assert {path: sim.disk.read(path) for path in _owned(sim)} == before
    sim.close()


def test_a_replaced_controller_that_publishes_nothing_notices_by_its_heartbeat() -> None:
    engine = EngineProfile(hang_share=1.0)
    sim = Simulation(prompts=8, siblings=2, groups_per_step=2, steps=2, engine=engine, seed=1)
    sim.run_until(seconds=3)
    replaced = take_over(sim)
    sim.run_until(seconds=3)
    lock = sim.disk.read(RUN_DIR / "lock")
    replaced.wake(seconds=11)
    assert replaced.ended is not None and replaced.ended.how == "Fenced", replaced.ended
    assert sim.disk.read(RUN_DIR / "lock") == lock
    sim.close()


def _owned(sim: Simulation) -> list[PurePosixPath]:
    directory = RUN_DIR / "incarnations"
    return [RUN_DIR / "lock", *(directory / name for name in sim.disk.list(directory))]
