"""Kills inside responses of 1,000 tokens: the real program, and the judge on forged logs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from outlast.ports import TokenChunk
from outlast.testing.shadow import Tokens
from outlast.testing.token_judge import Kept, TokenJudge
from outlast.testing.token_kills import AGAIN_MAX, Report, draw_fate
from outlast.testing.token_life import (
    RESPONSE_TOKENS,
    Acknowledged,
    Received,
    Record,
    Requested,
    Stored,
)

KILLS = 5
"""`make chaos` runs fifty."""
SLOT = (0, 0)
PROMPT = Tokens(prompt=b"p")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_S13_kills_inside_long_responses_of_the_real_program(tmp_path: Path) -> None:
    """In a process of its own, since it forks. Killed at token 900 with a cut at 800: 100 again."""
    command = [sys.executable, "-m", "outlast.testing.token_kills", "--json"]
    command += ["--kills", str(KILLS), "--seed", "1", "--directory", str(tmp_path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = msgspec.json.decode(done.stdout, type=Report)
    assert report.kills == KILLS and report.violations == []
    assert 50 < report.again_at_900 <= AGAIN_MAX
    assert report.again_max <= AGAIN_MAX
    assert report.kept_mean > 100


def test_fates_are_drawn_from_the_seed_and_lie_inside_the_response() -> None:
    fates = [draw_fate(number, seed=3) for number in range(50)]
    assert fates == [draw_fate(number, seed=3) for number in range(50)]
    assert (fates[0].kill_at, fates[0].cut_at) == (900, 800)
    for fate in fates:
        assert fate.kill_at is not None and 1 < fate.kill_at < RESPONSE_TOKENS
        assert fate.cut_at is None or 1 <= fate.cut_at < fate.kill_at
    assert sum(fate.cut_at is None for fate in fates) == 25


def some(first: int, count: int, *, logprob: float = -1.0) -> Tokens:
    """Tokens `first`.. behind the prompt."""
    chunk = TokenChunk(
        ids=np.arange(first, first + count, dtype=np.int32),
        logprobs=np.full(count, logprob, np.float32),
        versions=np.zeros(count, np.int32),
    )
    return PROMPT.plus(chunk)


def killed(*, kept: Tokens, sequence: int = 1) -> TokenJudge:
    """A judge after a life that received tokens 0..9 and left a cut on the disk."""
    judge = TokenJudge()
    judge.life(
        [
            Requested("g0.s0.i1.n0", PROMPT),
            Received("g0.s0.i1.n0", some(0, 6)),
            Acknowledged(1),
            Received("g0.s0.i1.n0", some(6, 4)),
        ]
    )
    judge.killed(Kept(sequence=sequence, prefixes={SLOT: kept}))
    return judge


def test_S13_a_life_that_goes_on_behind_the_cut_is_in_order() -> None:
    judge = killed(kept=some(0, 6))
    judge.life(
        [
            Requested("g0.s0.i2.n0", some(0, 6)),
            Received("g0.s0.i2.n0", some(50, 3)),
            Stored("g0.s0.i2.n0", some(0, 6).plus(some(50, 3).chunk())),
        ]
    )
    assert judge.violations == []
    assert (judge.again, judge.kept, judge.chunk_max) == ([4], [6], 6)


@pytest.mark.parametrize(
    "prefix",
    [PROMPT, some(0, 5), some(0, 10), some(1, 6), some(0, 6, logprob=-2.0)],
    ids=["none", "shorter", "longer", "other ids", "other logprobs"],
)
def test_S13_a_life_that_begins_with_anything_else_is_reported(prefix: Tokens) -> None:
    judge = killed(kept=some(0, 6))
    judge.life([Requested("g0.s0.i2.n0", prefix)])
    assert len(judge.violations) == 1 and judge.violations[0].startswith("S13: g0.s0.i2.n0 begins")


def test_S13_a_cut_with_tokens_that_nobody_received_is_reported() -> None:
    assert killed(kept=some(0, 6)).violations == []
    assert killed(kept=some(3, 6)).violations[0].startswith("S13: the cut holds")


def test_A2_a_cut_that_was_acknowledged_and_is_gone_is_reported() -> None:
    assert killed(kept=some(0, 6), sequence=0).violations[0].startswith("A2")


@pytest.mark.parametrize(
    ("record", "law"),
    [
        (Stored("g0.s0.i2.n0", some(0, 7)), "S13: row"),
        (Requested("g0.s1.i2.n0", PROMPT), "S2: g0.s1"),
    ],
)
def test_other_wrongs_of_a_second_life_are_reported(record: Record, law: str) -> None:
    judge = killed(kept=some(0, 6))
    judge.killed(Kept(sequence=1, prefixes={SLOT: some(0, 6)}, sealed={(0, 1)}))
    judge.life([Requested("g0.s0.i2.n0", some(0, 6)), record])
    assert len(judge.violations) == 1 and judge.violations[0].startswith(law)


def test_a_run_that_ends_with_a_short_response_is_reported() -> None:
    judge = TokenJudge()
    judge.finished()
    assert judge.violations == ["S13: responses of [] tokens"]
