"""Real kills of the real program: nothing skipped, nothing repeated, nothing generated again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.testing.chaos import main, run_campaign
from outlast.testing.chaos_blows import Kind
from outlast.testing.chaos_report import print_report, report_json
from outlast.testing.chaos_verdict import Campaign
from tests.e2e.program import SMALL

KILLS = 13


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dozen_kills_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    campaign = Campaign(
        kills=KILLS,
        seed=5,
        overrides=(*SMALL, "algorithm.max_num_steps=14"),
        life_s=1.5,
        timeout_s=840,
    )
    said: list[str] = []
    verdict = run_campaign(campaign, tmp_path, say=said.append)
    print_report(verdict)
    assert verdict.violations == [], "\n".join(said)
    assert len(verdict.deaths) >= KILLS and verdict.finished >= 1
    assert (verdict.skipped, verdict.repeated) == (0, 0) and verdict.orphans == []
    assert verdict.siblings_reused > 0 and verdict.tokens_reused > 0
    assert len({death.ended.blow.kind for death in verdict.deaths}) >= 4
    assert verdict.trained == 14 * 4 * verdict.finished
    report = json.loads(report_json(verdict))
    assert report["ok"] and len(report["deaths"]) == len(verdict.deaths)


def test_a_program_that_cannot_start_is_a_violation(tmp_path: Path, capsys) -> None:
    code = main(
        ["--kills", "1", "--kinds", Kind.TIMER, "--directory", str(tmp_path), "--json",
         "--set", "model.path=/nowhere"]
    )  # fmt: skip
    report = json.loads(capsys.readouterr().out)
    assert code == 1 and not report["ok"]
    assert "exit code 78; allowed" in report["violations"][0]
