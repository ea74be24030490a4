"""``python -m outlast.testing.token_kills``: SIGKILL in the middle of 1,000-token responses.

Real processes with the real engine, trainer and disk. Each run is killed once at a random token,
resumed, and must end with whole responses, of which no token that a cut held was decoded again
(S13). The first run is killed at token 900 with a cut at 800; of the others, every second one has
its cut at a random token too, and the rest take cuts as they come. Exit code 0 without violations,
1 with some. May import: `testing.token_life`, `testing.token_judge`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import msgspec

from outlast.testing.token_judge import TokenJudge, kept_on_disk
from outlast.testing.token_life import RESPONSE_TOKENS, Fate, live, read_log, save_model

LIFE_S_MAX = 120.0
DISTANCE_MAX = 150
"""Tokens between cut and kill where both are drawn."""
AGAIN_MAX = 200
"""With a cut at most 150 tokens back; chunks and siblings that are a chunk ahead take the rest."""


@dataclass(slots=True)
class Report:
    """What a campaign came to. Tokens are of one sibling."""

    kills: int = 0
    seconds: float = 0.0
    again_at_900: int = 0
    """The first run: most tokens decoded again after a kill at token 900 with a cut at 800."""
    again_max: int = 0
    """Most tokens decoded again in runs with a cut at a chosen token."""
    again_max_free: int = 0
    """The same in runs whose cuts came as they came."""
    again_mean: float = 0.0
    kept_mean: float = 0.0
    chunk_max: int = 0
    violations: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        lines = [
            f"kills                 {self.kills} in {self.seconds:.0f} s, each inside a response "
            f"of {RESPONSE_TOKENS} tokens",
            f"900 with a cut at 800 {self.again_at_900} tokens decoded again",
            f"drawn kill and cut    {self.again_max} tokens at most, a cut {DISTANCE_MAX} back",
            f"drawn kill            {self.again_max_free} tokens at most, cuts as they came",
            f"in the mean           {self.again_mean:.0f} decoded again, {self.kept_mean:.0f} kept",
            f"longest chunk         {self.chunk_max} tokens",
            f"violations            {len(self.violations)}",
        ]
        return "\n".join(lines + [f"  {violation}" for violation in self.violations])


def draw_fate(number: int, *, seed: int) -> Fate:
    """How run `number` of a campaign is killed."""
    if number == 0:
        return Fate(kill_at=900, cut_at=800)
    rng = random.Random(f"{seed}/{number}")
    cut_at = rng.randrange(1, RESPONSE_TOKENS - DISTANCE_MAX - 40)
    kill_at = cut_at + rng.randrange(1, DISTANCE_MAX)
    return Fate(kill_at=kill_at, cut_at=cut_at if number % 2 == 0 else None)


def run_kills(kills: int, directory: Path, *, seed: int) -> Report:
    """Run as many runs as kills below `directory`. The process must have no other threads."""
    began, model, report = time.monotonic(), directory / "model", Report()
    _require_end(_spawn(lambda: save_model(model), log=directory / "model.txt"), 0)
    again: list[int] = []
    kept: list[int] = []
    for number in range(kills):
        fate, judge = draw_fate(number, seed=seed), TokenJudge()
        place = directory / f"run_{number:03d}"
        place.mkdir()
        _two_lives(model, place, judge=judge, seed=seed + number, fate=fate)
        _count(report, judge, number=number, fate=fate)
        again += judge.again
        kept += judge.kept
    report.kills, report.seconds = kills, time.monotonic() - began
    report.again_mean = sum(again) / max(1, len(again))
    report.kept_mean = sum(kept) / max(1, len(kept))
    return report


def _two_lives(model: Path, place: Path, *, judge: TokenJudge, seed: int, fate: Fate) -> None:
    """Killed by its fate, then resumed to the end."""
    for life, (how, expected) in enumerate(((fate, -signal.SIGKILL), (Fate(), 0))):
        log = place / f"tokens_{life}.jsonl"

        def one(log: Path = log, how: Fate = how) -> None:
            live(model, place / "run", log=log, seed=seed, fate=how)

        code = _spawn(one, log=place / f"life_{life}.txt")
        judge.life(read_log(log))
        if code != expected:
            judge.violations.append(f"L1: life {life} ended with {code}, expected {expected}")
            return
        if code:
            judge.killed(kept_on_disk(place / "run"))
    judge.finished()


def _count(report: Report, judge: TokenJudge, *, number: int, fate: Fate) -> None:
    most = max(judge.again, default=0)
    if number == 0:
        report.again_at_900 = most
    if fate.cut_at is None:
        report.again_max_free = max(report.again_max_free, most)
    else:
        report.again_max = max(report.again_max, most)
        if most > AGAIN_MAX:
            judge.violations.append(f"S13: {most} tokens decoded again, {AGAIN_MAX} allowed")
    report.chunk_max = max(report.chunk_max, judge.chunk_max)
    report.violations += [f"run {number} ({fate}): {text}" for text in judge.violations]


def _require_end(code: int, expected: int) -> None:
    if code != expected:
        raise RuntimeError(f"a child ended with {code}, expected {expected}")


def _spawn(work: Callable[[], None], *, log: Path) -> int:
    """Run `work` in a forked process; returns its exit code, negative for a signal. Forked, not
    started anew, because importing torch takes longer than the life that is killed."""
    pid = os.fork()
    if pid == 0:
        _as_child(work, log=log)
    until = time.monotonic() + LIFE_S_MAX
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -signal.SIGTERM  # hung: distinct from the kill that was planned


def _as_child(work: Callable[[], None], *, log: Path) -> None:
    """Never returns."""
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        work()
        code = 0
    except BaseException:  # boundary: the child's own end, whatever it is
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.token_kills")
    parser.add_argument("--kills", type=int, default=50, help="runs, each killed once")
    parser.add_argument("--seed", type=int, default=0, help="draws kills and cuts")
    parser.add_argument("--directory", type=Path, help="keep runs and logs below this one")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    chosen = parser.parse_args(arguments)
    import_heavy()
    with contextlib.ExitStack() as stack:
        place = chosen.directory
        if place is None:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="outlast-tokens-"))
            place = Path(made)
        report = run_kills(chosen.kills, place, seed=chosen.seed)
    print(msgspec.json.encode(report).decode() if chosen.json else report.text())
    return 1 if report.violations else 0


def import_heavy() -> None:
    """Import once what every child needs."""
    for name in (
        "transformers.models.llama.modeling_llama",
        "outlast.adapters.engines.torch_engine",
        "outlast.adapters.environments.single_turn",
        "outlast.adapters.trainers.torch_trainer",
    ):
        import_module(name)


if __name__ == "__main__":
    sys.exit(main())
