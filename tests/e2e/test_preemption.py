"""L3 and P7 of the real program: SIGTERM in every phase ends in a last cut inside the grace.

The program stops itself (SIGSTOP) at a failpoint, so that the signal arrives in exactly that phase
and the seconds from signal to end are those of the stop alone. `pytest -s` prints them;
`OUTLAST_REPEATS=5` gives the worst of five.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from outlast.telemetry import events
from outlast.testing.chaos_child import Child
from tests.e2e.program import outlast, sets

GRACE_S = 25.0
REPEATS = int(os.environ.get("OUTLAST_REPEATS", "1"))
COMMON = (
    "algorithm.max_num_steps=100000",
    f"preemption.grace_s={GRACE_S:g}",
)
PHASES = {
    "start-up": "start.trainer_loaded:stop",
    "replay": "replay.stepped:stop",
    "waiting for generation": "rollout.admitted:stop:3",
    "optimizer step": "train.before_finish:stop:4",
    "weight sync": "weights.before_push:stop:4",
    "trainer checkpoint": "checkpoint.written:stop",
    "snapshot": "snapshot.rows_saved:stop:2",
}


def _asleep(child: Child) -> bool:
    stat = Path(f"/proc/{child.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def _await_stop(child: Child) -> None:
    limit = time.monotonic() + 180
    while not _asleep(child):
        assert child.returncode is None and time.monotonic() < limit, child.last_words()
        child.read()
        time.sleep(0.01)


def _terminated(child: Child) -> float:
    """SIGTERM in the phase where the child sleeps. Seconds until its end."""
    child.signal(signal.SIGTERM)
    began = time.monotonic()
    child.signal(signal.SIGCONT)
    assert child.wait(GRACE_S + 5), f"L3: still there\n{child.last_words()}"
    seconds = time.monotonic() - began
    assert child.returncode == 75, child.last_words()
    assert seconds <= GRACE_S
    return seconds


def _child(directory: Path, number: int, *, failpoint: str, more: tuple[str, ...] = ()) -> Child:
    return Child(
        [*sets(*COMMON, *more), "--run-dir", str(directory / "run")],
        tape=directory / f"tape_{number}",
        log=directory / f"log_{number}",
        environment={"OMP_NUM_THREADS": "1", "OUTLAST_FAILPOINT": failpoint},
    )


def _judge(child: Child, directory: Path) -> None:
    """The farewell names what was saved, and nothing sealed is missing from it."""
    said = [taped.event for taped in child.events]
    assert isinstance(said[-1], events.RunEnded) and said[-1].reason == "preempted"
    farewell = child.log.read_text().splitlines()[-1]
    assert "preempted (SIGTERM)" in farewell
    assert (said[-1].last_cut or "before anything") in farewell, farewell
    sealed = [e for e in said if isinstance(e, events.SiblingSealed)]
    if sealed:  # an unfinished snapshot in front of the last one is allowed, nothing behind it
        *_, last = (n for n, e in enumerate(said) if isinstance(e, events.SnapshotPublished))
        assert not any(isinstance(e, events.SiblingSealed) for e in said[last:])
    assert outlast("audit", directory / "run").returncode == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("phase", PHASES)
def test_L3_a_signal_in_any_phase_ends_in_a_last_cut(phase: str, tmp_path: Path) -> None:
    worst = 0.0
    for number in range(REPEATS):
        directory = tmp_path / str(number)
        directory.mkdir()
        more: tuple[str, ...] = ()
        if phase == "replay":
            more = ("checkpointing.save_period=1000",)
            with _child(directory, 0, failpoint="train.applied:stop:3", more=more) as first:
                _await_stop(first)
                _terminated(first)
        with _child(directory, 1, failpoint=PHASES[phase], more=more) as child:
            _await_stop(child)
            worst = max(worst, _terminated(child))
            _judge(child, directory)
    print(f"SIGTERM during {phase}: {worst:.2f} s to the end, worst of {REPEATS}")


@pytest.mark.slow
def test_L3_a_signal_during_validation(tmp_path: Path) -> None:
    more = ("validation.enabled=true", "validation.size=2000")
    with _child(tmp_path, 1, failpoint="start.ready:stop", more=more) as child:
        _await_stop(child)
        child.signal(signal.SIGCONT)
        time.sleep(0.5)
        assert not any(isinstance(t.event, events.ValidationFinished) for t in child.read())
        child.signal(signal.SIGSTOP)
        seconds = _terminated(child)
        _judge(child, tmp_path)
    print(f"SIGTERM during validation: {seconds:.2f} s to the end")


@pytest.mark.slow
def test_must_save_by_forces_a_cut_before_the_first_step(tmp_path: Path) -> None:
    """A step that lasts for ever: what was generated until then stands in a bootstrap cut."""
    more = (
        "checkpointing.checkpoint_must_save_by='00:00:00:10'",
        "rollout_checkpointing.snapshot_attempt_interval_s=600",
        "algorithm.num_prompts_per_step=2000",
        "async_rl.max_buffered_rollouts=4000",
    )
    with _child(tmp_path, 1, failpoint="", more=more) as child:
        assert child.wait(60), child.last_words()
        assert child.returncode == 75, child.last_words()
        said = [taped.event for taped in child.events]
    assert not any(isinstance(event, events.StepFinished) for event in said)
    published = [event for event in said if isinstance(event, events.SnapshotPublished)]
    assert len(published) == 1 and published[0].trainer_version == 0 and published[0].rows > 0
    assert "checkpoint_must_save_by" in child.log.read_text().splitlines()[-1]
