"""The child of the auditor, and what its tape tells: stops, orphans, phases."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest

from outlast.cli.failpoints import FAILPOINTS
from outlast.telemetry import events
from outlast.testing import chaos_child
from outlast.testing.chaos_child import Child, Taped
from outlast.testing.chaos_phase import Phase, phase_of
from tests.telemetry import samples

FORKING = (
    "import subprocess, sys, time\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print('started', flush=True)\n"
    "time.sleep(60)"
)


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Child:
    monkeypatch.setattr(chaos_child, "PROGRAM", (sys.executable, "-c", request.param))
    return Child((), tape=tmp_path / "tape", log=tmp_path / "log", environment={})


def _started(child: Child) -> None:
    until = time.monotonic() + 60
    while not child.log.read_text() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("child", [FORKING], indirect=True)
def test_what_outlives_its_program_is_named_and_ended(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos_child, "ORPHANS_MAX_S", 0.1)
    with child:
        _started(child)
        child.signal(signal.SIGKILL)
        assert child.wait(60) and child.returncode == -signal.SIGKILL
        (orphan,) = child.orphans()
        assert "time.sleep(60)" in orphan
    assert child.orphans() == []


@pytest.mark.parametrize(
    "child", ["print(1, flush=True)\nimport time; time.sleep(60)"], indirect=True
)
def test_a_stopped_child_is_no_dead_one(child: Child) -> None:
    with child:
        _started(child)
        assert not child.stopped
        assert child.stop(60) and child.stopped and child.returncode is None
        assert not child.wait(60, or_stopped=True)
        child.signal(signal.SIGCONT)
        assert not child.wait(0.05, or_stopped=True) and not child.stopped
        child.signal(signal.SIGKILL)
        assert child.wait(60) and not child.stopped and not child.stop(1)


DISPATCHED = events.AttemptDispatched(key="g0.s0.i1.n0", version=0, prefix_tokens=0)
SERVED = events.WeightsServed(version=1, seconds=0.1)
REPLAYED = events.StepReplayed(step=1, metrics={}, differences={}, seconds=1)


def _gauges(claimed: int) -> events.Gauges:
    return events.Gauges(
        trainer_version=0, served_version=0, open_groups=1, buffered_groups=0,
        claimed_groups=claimed, inflight_siblings=1, tokens_per_s=1.0,
        last_snapshot_age_s=None, at_risk_tokens=0, at_risk_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("said", "phase"),
    [
        ((), Phase.START),
        ((REPLAYED,), Phase.REPLAY),
        ((DISPATCHED,), Phase.GENERATION),
        ((DISPATCHED, _gauges(2)), Phase.TRAINING),
        ((DISPATCHED, _gauges(2), samples.step(1)), Phase.WEIGHTS),
        ((DISPATCHED, _gauges(2), samples.step(1), SERVED), Phase.GENERATION),
        ((DISPATCHED, SERVED, _gauges(1), DISPATCHED), Phase.TRAINING),
    ],
)
def test_the_tape_tells_the_phase(said: tuple[events.AnyEvent, ...], phase: Phase) -> None:
    tape = [Taped(float(n), event) for n, event in enumerate(said)]
    assert phase_of(tape, place=None, asked=False) is phase
    assert phase_of(tape, place=None, asked=True) is Phase.STOP


def test_every_failpoint_has_a_phase() -> None:
    found = {phase_of((), place=place, asked=False) for place in FAILPOINTS}
    assert found == set(Phase)
