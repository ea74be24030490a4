"""`outlast crashtest` and `outlast simulate`: the harnesses as commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from outlast.testing import power
from tests.e2e.program import SMALL

SETS = [part for override in SMALL for part in ("--set", override)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crashtest_kills_audits_and_says_what_it_cost(outlast, tmp_path: Path) -> None:
    done = outlast(
        "crashtest", *SETS, "--kills", 2, "--kinds", "timer,term", "--life-s", 1, "--seed", 1,
        "--directory", tmp_path / "kept", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] and report["kills"] == 2 and report["violations"] == []
    assert {death["kind"] for death in report["deaths"]} <= {"timer", "term"}
    assert all(death["phase"] and death["first_dispatch_s"] > 0 for death in report["deaths"])
    assert outlast("audit", tmp_path / "kept" / "lineage_1" / "run").exit_code == 0


def test_crashtest_ends_with_70_and_tables_when_the_recipe_cannot_run(outlast) -> None:
    done = outlast("crashtest", "--kills", 1, "--kinds", "timer", "--set", "model.path=/nowhere")
    assert done.exit_code == 70
    assert "by kind" in done.stdout and "by phase" in done.stdout
    assert "exit code 78; allowed" in done.stdout and "audit: 1 violations" in done.stdout


def test_crashtest_refuses_what_it_does_not_know(outlast, tmp_path: Path) -> None:
    done = outlast("crashtest", "--kinds", "timer,lightning")
    assert done.exit_code == 2 and "there is no lightning" in done.stderr
    assert outlast("crashtest", tmp_path / "none.yaml").exit_code == 78


def test_crashtest_says_when_power_cannot_be_cut(outlast, monkeypatch) -> None:
    monkeypatch.setattr(power, "why_not", lambda: "mounting an image needs root")
    monkeypatch.setattr(power, "private_mounts", lambda: None)
    done = outlast(
        "crashtest", "--kills", 1, "--kinds", "timer", "--power-cuts", 2,
        "--set", "model.path=/nowhere",
    )  # fmt: skip
    assert "power cuts NOT TESTED: mounting an image needs root" in done.stdout


def test_simulate_reports_and_finds_nothing(outlast) -> None:
    report = json.loads(outlast("simulate", "--seeds", 3, "--json").stdout)
    assert report["ok"] and report["lineages"] == 3 and report["violations"] == []
    done = outlast("simulate", "--seeds", 1, "--start", 5)
    assert done.exit_code == 0 and "violations    0" in done.stdout


def test_the_program_knows_them_and_the_commands_do_not_need_them() -> None:
    """`cli` names nothing of `testing`; the script and `python -m outlast` offer both."""
    shown = subprocess.run(
        [sys.executable, "-m", "outlast", "--help"],
        capture_output=True, text=True, timeout=120, check=True,
    ).stdout  # fmt: skip
    assert "crashtest" in shown and "simulate" in shown
    code = (
        "import sys, outlast.cli.main\n"
        "print(any(name.startswith('outlast.testing') for name in sys.modules))"
    )
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert alone.stdout.strip() == "False"
