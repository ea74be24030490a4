"""Chaos: kill the real program, restart it, and judge every life from outside (laws, harness c).

    python -m outlast.testing.chaos --kills 100 --seed 0 [--recipe R] [--set a.b=c] [--json]

Lineages follow each other until enough lives were ended; each is driven to its end and audited.
Exit code 0: no violation; 1: a violation, or fewer kills than asked for; 69: something hung.
May import: everything below the command line.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from outlast.config.load import load_recipe
from outlast.errors import Preempted
from outlast.telemetry.events import AttemptDispatched
from outlast.testing.chaos_blows import Kind, draw_blow
from outlast.testing.chaos_judge import Books, Loss, look
from outlast.testing.chaos_lives import Ended, Hung, Order, Pace, live
from outlast.testing.chaos_report import print_report, report_json
from outlast.testing.chaos_verdict import Campaign, Death, Verdict

SMALL = (
    "algorithm.num_prompts_per_step=8",
    "algorithm.num_generations_per_prompt=8",
    "algorithm.max_num_steps=12",
    "async_rl.min_groups_for_streaming_train=2",
    "async_rl.max_inflight_prompts=16",
    "async_rl.max_buffered_rollouts=32",
    "rollout_checkpointing.snapshot_attempt_interval_s=0.5",
    "validation.enabled=false",
)
"""The built-in demo, small: a step takes about a second, and snapshots fall into every phase."""
REPLAYING = (
    "rollout_checkpointing.anchor_policy=replay",
    "checkpointing.save_period=3",
    "rollout_recovery.default_level=token",
)
"""Every second lineage of the built-in demo: snapshots between trainer checkpoints, prefixes."""
BARREN_MAX = 6
"""After so many lives without a new step, one is left alone until it has made two."""


def run_campaign(
    campaign: Campaign, directory: Path, *, say: Callable[[str], None] = lambda _: None
) -> Verdict:
    """Carry out `campaign` below `directory`: ``lineage_N/run`` are the run directories.

    Raises Hung when a life neither works nor dies, RecipeError for a recipe that cannot run.
    """
    began = time.monotonic()
    verdict = Verdict(campaign=campaign)
    rng = random.Random(campaign.seed)
    pace = Pace(life_s=campaign.life_s or 4.0, fixed=campaign.life_s is not None)
    for number in range(1, campaign.lineages_max + 1):
        place = directory / f"lineage_{number}"
        place.mkdir(parents=True)
        lineage = _Lineage(verdict, place, number=number, rng=rng, pace=pace, say=say)
        lineage.run(deadline=began + campaign.timeout_s)
        if len(verdict.deaths) >= campaign.kills or verdict.broken:
            break
    verdict.seconds = time.monotonic() - began
    return verdict


class _Lineage:
    """One run directory from its first life to its end."""

    def __init__(
        self,
        verdict: Verdict,
        place: Path,
        *,
        number: int,
        rng: random.Random,
        pace: Pace,
        say: Callable[[str], None],
    ) -> None:
        self._verdict = verdict
        self._place = place
        self._run = place / "run"
        self._number = number
        self._rng = rng
        self._pace = pace
        self._say = say
        self._books = Books()
        self._barren = 0
        campaign = verdict.campaign
        shape = (*SMALL, *(REPLAYING if number % 2 == 0 else ()))
        chosen = campaign.overrides if campaign.recipe else (*shape, *campaign.overrides)
        self._recipe = load_recipe(campaign.recipe, chosen).recipe
        options = [part for override in chosen for part in ("--set", override)]
        self._arguments = (
            *([campaign.recipe] if campaign.recipe else []),
            *options,
            "--run-dir",
            str(self._run),
        )

    def run(self, *, deadline: float) -> None:
        """Lives until one finishes, or breaks a promise of the process; then the audit."""
        order = Order(
            arguments=self._arguments,
            directory=self._place,
            grace_s=self._recipe.preemption.grace_s,
            deadline=deadline,
        )
        life, ended = 0, None
        while ended is None or not (ended.finished or ended.complaints):
            life += 1
            ended = self._life(life, order)
        if ended.finished:
            self._close()
        self._verdict.violations += [
            f"lineage {self._number}, {text}" for text in self._books.violations
        ]

    def _life(self, life: int, order: Order) -> Ended:
        """One life, judged."""
        verdict = self._verdict
        before = look(self._run)
        wanted = len(verdict.deaths) < verdict.campaign.kills
        blow = draw_blow(self._rng, verdict.campaign.kinds) if wanted else None
        pace = self._pace
        if self._barren >= BARREN_MAX:  # let it get somewhere before the next blow falls
            pace = Pace(life_s=4 * pace.life_s, fixed=True, start_s=pace.start_s)
            blow = draw_blow(random.Random(f"{self._number}.{life}"), (Kind.TERM,))
        ended = live(life, blow if wanted else None, order=order, pace=pace)
        after = look(self._run)
        loss = self._books.judge(ended.tape, before=before, after=after)
        self._note(life, ended, loss=loss)
        self._barren = 0 if after.version > before.version else self._barren + 1
        self._pace.learn(ended.tape, first_dispatch_s=ended.first_dispatch_s)
        return ended

    def _note(self, life: int, ended: Ended, *, loss: Loss) -> None:
        verdict = self._verdict
        where = f"lineage {self._number}, life {life}"
        verdict.lives += 1
        self._books.violations += [f"life {life}: {text}" for text in ended.complaints]
        if ended.returncode == Preempted.exit_code and loss.siblings_lost:
            self._books.violations.append(
                f"life {life}: P7: {loss.siblings_lost} sealed siblings are not in the last cut"
            )
        verdict.prefix_tokens_reused += sum(
            taped.event.prefix_tokens
            for taped in ended.tape
            if isinstance(taped.event, AttemptDispatched)
        )
        if ended.restart_s is not None:
            verdict.restarts_s.append(ended.restart_s)
        if not ended.finished:
            verdict.deaths.append(Death(lineage=self._number, life=life, ended=ended, loss=loss))
            verdict.siblings_reused += loss.siblings_reused
            verdict.tokens_reused += loss.tokens_reused
        kind = str(ended.blow) if ended.blow else "undisturbed"
        self._say(
            f"{where}: {kind} -> {ended.returncode}, {ended.state}; kept {loss.siblings_reused} "
            f"siblings, lost {loss.siblings_lost}; {len(self._books.violations)} violations"
        )

    def _close(self) -> None:
        verdict = self._verdict
        report = self._books.close(self._run, target=self._recipe.algorithm.max_num_steps)
        verdict.finished += 1
        verdict.skipped += report.skipped
        verdict.repeated += report.repeated
        verdict.trained += report.trained


# ---------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    options = _parser().parse_args(arguments)
    campaign = Campaign(
        kills=options.kills,
        seed=options.seed,
        recipe=options.recipe,
        overrides=tuple(options.overrides),
        kinds=tuple(Kind(name) for name in options.kinds.split(",")),
        lineages_max=options.lineages,
        life_s=options.life_s,
        timeout_s=options.timeout_s,
    )
    say = _quiet if options.json else _to_stderr
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child is left behind
    try:
        if options.directory is not None:
            verdict = run_campaign(campaign, options.directory, say=say)
        else:
            with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as directory:
                verdict = run_campaign(campaign, Path(directory), say=say)
    except Hung as error:
        print(f"chaos: {error}", file=sys.stderr)
        return Hung.exit_code
    if options.json:
        print(report_json(verdict))
    else:
        print_report(verdict)
    return 0 if verdict.ok else 1


def _quiet(_: str) -> None:
    """With --json only the report is printed."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=100, help="lives to end before their time")
    parser.add_argument("--seed", type=int, default=0, help="draws the blows")
    parser.add_argument("--recipe", help="recipe file; none: the built-in demo, made small")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=v")
    parser.add_argument("--kinds", default=",".join(Kind), help="blows to draw from")
    parser.add_argument("--lineages", type=int, default=1_000, help="at most so many runs")
    parser.add_argument("--life-s", type=float, help="typical seconds until a blow; else learnt")
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="bound of the campaign")
    parser.add_argument("--directory", type=Path, help="keep runs, tapes and logs below this one")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
