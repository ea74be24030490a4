"""`outlast train`: recipes, run directories, endings and exit codes; and one real small run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlast as package
from outlast.cli import wiring
from outlast.cli.exits import Exit
from outlast.errors import DiskError, LockHeld, Preempted, StallAbort
from outlast.model.ids import TrainerVersion
from outlast.runtime.controller import Ending, Outcome
from tests.telemetry import samples


class Asked:
    """Stands for `run_training`: remembers what it was asked, and ends as told."""

    def __init__(self, ending: Ending | Exception = Ending.FINISHED) -> None:
        self.ending = ending
        self.launch = wiring.Launch(run_dir=Path())
        self.recipe = None

    def __call__(self, loaded, launch, *, sinks=()):
        self.launch, self.recipe = launch, loaded.recipe
        for sink in sinks:
            sink(samples.started(), 100.0)
            sink(samples.step(1), 101.0)
        if isinstance(self.ending, Exception):
            raise self.ending
        return Outcome(
            ending=self.ending,
            version=TrainerVersion(7),
            last_cut="snapshot_000008",
            reason="SIGTERM" if self.ending is Ending.PREEMPTED else "at step 7, its target is 7",
        )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    stand_in = Asked()
    monkeypatch.setattr(wiring, "run_training", stand_in)
    return stand_in


def test_version(outlast) -> None:
    done = outlast("--version")
    assert (done.exit_code, done.stdout) == (0, f"outlast {package.__version__}\n")


def test_the_demo_needs_no_arguments(asked: Asked, outlast) -> None:
    done = outlast("train")
    assert done.exit_code == 0, done.stderr
    assert asked.launch == wiring.Launch(run_dir=Path("runs/tiny"))
    assert "step 1/60" in done.stdout


def test_options_reach_the_run(asked: Asked, outlast, tmp_path: Path) -> None:
    done = outlast(
        "train", "tiny", "--set", "seed=9", "--set", "algorithm.max_num_steps=3",
        "--run-dir", tmp_path / "r", "--fresh", "--take-over",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert asked.launch == wiring.Launch(run_dir=tmp_path / "r", fresh=True, take_over=True)
    assert asked.recipe.seed == 9 and asked.recipe.algorithm.max_num_steps == 3


def test_the_recipe_names_the_run_directory(asked: Asked, outlast, tmp_path: Path) -> None:
    outlast("train", "--set", f"checkpointing.checkpoint_dir={tmp_path / 'there'}")
    assert asked.launch.run_dir == tmp_path / "there"


def test_a_misspelt_key_is_refused_with_78(asked: Asked, outlast) -> None:
    done = outlast("train", "--set", "algorithm.max_steps=3")
    assert done.exit_code == Exit.RECIPE == 78
    assert "max_num_steps" in done.stderr and "Traceback" not in done.stderr


def test_what_would_deadlock_is_refused_with_78(asked: Asked, outlast) -> None:
    done = outlast("train", "--set", "async_rl.max_buffered_rollouts=1")
    assert done.exit_code == 78
    assert "max_buffered_rollouts" in done.stderr


@pytest.mark.parametrize(("option", "code"), [((), 75), (("--preempt-exit-code", "0"), 0)])
def test_preempted_names_the_cut_that_stands(asked: Asked, outlast, option, code) -> None:
    asked.ending = Ending.PREEMPTED
    done = outlast("train", *option)
    assert done.exit_code == code
    assert "preempted (SIGTERM): snapshot_000008 stands" in done.stderr
    assert "Run the same command to continue" in done.stderr
    asked.ending = Preempted("while verifying")
    done = outlast("train", *option)
    assert done.exit_code == code and "while verifying" in done.stderr


def test_nothing_to_do_says_so(asked: Asked, outlast) -> None:
    asked.ending = Ending.NOTHING_TO_DO
    done = outlast("train")
    assert done.exit_code == 0 and "nothing to do: at step 7, its target is 7" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(LockHeld("held by pid 4"), 65), (StallAbort("train waits"), 69), (DiskError("EIO"), 74)],
)
def test_an_error_is_its_message_and_its_code(asked: Asked, outlast, error, code) -> None:
    asked.ending = error
    done = outlast("train")
    assert done.exit_code == code
    assert f"outlast: {error}" in done.stderr and "Traceback" not in done.stderr


def test_a_bug_shows_its_traceback_and_70(asked: Asked, outlast) -> None:
    asked.ending = ZeroDivisionError("oops")
    done = outlast("train")
    assert done.exit_code == Exit.INVARIANT == 70
    assert "Traceback" in done.stderr and "ZeroDivisionError: oops" in done.stderr


def test_json_keeps_stdout_for_machines(asked: Asked, outlast) -> None:
    lines = outlast("train", "--json").stdout.splitlines()
    assert all(line.startswith('{"wall":') for line in lines) and len(lines) == 2


def test_console_false_shows_nothing(asked: Asked, outlast) -> None:
    assert outlast("train", "--set", "telemetry.console=false").stdout == ""


def test_a_signal_before_the_start_is_a_preemption(asked: Asked, outlast) -> None:
    outlast("train")
    with pytest.raises(Preempted, match="SIGTERM before anything was started"):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_real_run_finishes_resumes_and_passes_its_audit(tmp_path: Path) -> None:
    def run(*args: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from outlast.cli.main import app; app()", *map(str, args)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    small = (
        "train", "--run-dir", tmp_path / "run",
        "--set", "algorithm.num_prompts_per_step=4",
        "--set", "algorithm.num_generations_per_prompt=4",
        "--set", "async_rl.min_groups_for_streaming_train=2",
        "--set", "validation.enabled=false",
        "--set", "rollout_checkpointing.snapshot_attempt_interval_s=1",
    )  # fmt: skip
    first = run(*small, "--set", "algorithm.max_num_steps=2")
    assert first.returncode == 0, first.stderr
    assert "step 2/2" in first.stdout
    again = run(*small, "--set", "algorithm.max_num_steps=2")
    assert again.returncode == 0 and "nothing to do" in again.stderr
    more = run(*small, "--set", "algorithm.max_num_steps=3")
    assert more.returncode == 0, more.stderr
    assert "resumed from" in more.stdout and "step 3/3" in more.stdout
    judged = run("audit", tmp_path / "run")
    assert judged.returncode == 0 and judged.stdout.startswith("exactly once"), judged.stdout
    assert '"state": "finished"' in run("status", tmp_path / "run", "--json").stdout
    assert run("snapshots", tmp_path / "run", "verify").returncode == 0
