"""The swarm: no violation over many drawn lineages, the same run in every process, S11."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.testing.lineage import run_lineage
from outlast.testing.plan import LEVELS, SAMPLERS, LifePlan, LineagePlan, draw_plan
from outlast.testing.shape import RunShape
from outlast.testing.shrink import shrink
from outlast.testing.swarm import ALLOWED, from_json, run_seeds, to_json

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
QUICK = 150
"""Lineages in the ordinary test run; `make sim` runs more."""


@pytest.mark.slow
def test_no_law_breaks_in_drawn_lineages() -> None:
    report = run_seeds(range(QUICK))
    assert not report.violations, report.text()
    assert report.lineages == QUICK
    assert report.crashes > 2 * QUICK
    assert len(report.kinds) == len(SAMPLERS) * len(LEVELS)
    assert report.twins > 5
    assert len(ALLOWED - report.cells.keys()) <= 8, report.text()


def trace_of(seed: int, *, hash_seed: str) -> str:
    """Trace digest of a seed in a new process."""
    command = [sys.executable, "-m", "outlast.testing.simulate", "--trace", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("seed", [3, 22])
def test_one_seed_gives_one_trace_in_every_process(seed: int) -> None:
    assert trace_of(seed, hash_seed="0") == trace_of(seed, hash_seed="4242")
    assert trace_of(seed, hash_seed="1") == run_lineage(draw_plan(seed)).trace


def test_different_seeds_give_different_traces() -> None:
    traces = {run_lineage(draw_plan(seed)).trace for seed in range(4)}
    assert len(traces) == 4


@pytest.mark.parametrize("level", LEVELS)
def test_S11_crashes_leave_no_trace_in_the_weights(level: str) -> None:
    for seed in range(4):
        lives = tuple(
            LifePlan(ending="disk", count=20 + 45 * n + 7 * seed, power_cut=bool(n % 2))
            for n in range(4)
        )
        shape = RunShape(
            prompts=9,
            steps=5,
            groups_per_step=2,
            window=0,
            deterministic=True,
            level=level,  # type: ignore[arg-type]
            interval_s=0.4,
            infrastructure_attempts=99,
            data_attempts=99,
        )
        result = run_lineage(LineagePlan(seed=seed, shape=shape, lives=lives, twin=True))
        assert result.violation is None
        assert result.crashes >= 2


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_a_kept_plan_stays_fixed(path: Path) -> None:
    assert run_lineage(from_json(path.read_bytes())).violation is None


def test_a_plan_survives_its_file() -> None:
    plan = draw_plan(11)
    assert from_json(to_json(plan)) == plan


def test_shrinking_keeps_the_broken_law_and_drops_the_rest() -> None:
    plan = draw_plan(12)

    def breaks(candidate: LineagePlan) -> str | None:
        return "S1: planted" if len(candidate.lives) >= 1 and candidate.shape.steps >= 2 else None

    small = shrink(plan, breaks=breaks)
    assert (len(small.lives), small.shape.steps) == (1, 2)
    assert small.trainer_faults == {} and small.poison == ()


def test_shrinking_a_plan_that_breaks_nothing_changes_nothing() -> None:
    plan = draw_plan(1)
    assert shrink(plan, breaks=lambda candidate: None) == plan
