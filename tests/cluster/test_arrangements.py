"""The real program past one process: killed in one arrangement, it goes on in another."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from outlast.telemetry import events
from outlast.testing.chaos_child import Child
from tests.e2e.program import outlast, sets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RANKS = ("training.backend=fsdp2", "training.world_size=2")
EVERYTHING = (
    *RANKS,
    "generation.placement=ray",
    "generation.num_engines=2",
    "data_plane.impl=transfer_queue",
)


def life(directory: Path, number: int, *overrides: str) -> Child:
    return Child(
        [*sets("algorithm.max_num_steps=100000", *overrides), "--run-dir", str(directory / "run")],
        tape=directory / f"tape_{number}",
        log=directory / f"log_{number}",
        environment={"OMP_NUM_THREADS": "1"},
    )


def steps(child: Child, count: int) -> None:
    """Wait for as many finished steps."""
    until, done = time.monotonic() + 180, 0
    while done < count:
        assert child.returncode is None and time.monotonic() < until, child.last_words()
        done += sum(isinstance(taped.event, events.StepFinished) for taped in child.read())
        time.sleep(0.05)


def test_a_run_moves_between_arrangements(tmp_path: Path) -> None:
    with life(tmp_path, 1, *EVERYTHING) as child:
        steps(child, 2)
        child.signal(signal.SIGKILL)
        assert child.wait(30)
    with life(tmp_path, 2, *RANKS) as child:  # one embedded engine, rows in the controller
        steps(child, 2)
        child.signal(signal.SIGTERM)
        assert child.wait(60) and child.returncode == 75, child.last_words()
    version = max(t.event.step for t in child.events if isinstance(t.event, events.StepFinished))
    ended = outlast(
        "train", "--run-dir", tmp_path / "run", *sets(f"algorithm.max_num_steps={version + 1}")
    )
    assert ended.returncode == 0, ended.stderr
    assert "resumed from" in ended.stdout
    judged = outlast("audit", tmp_path / "run")
    assert judged.returncode == 0 and judged.stdout.startswith("exactly once"), judged.stdout
