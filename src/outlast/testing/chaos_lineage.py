"""One lineage of a chaos campaign: a run directory from its first life to its audit.

May import: everything of the campaign, `config`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from outlast.config.load import load_recipe
from outlast.errors import Preempted
from outlast.telemetry.events import AttemptDispatched
from outlast.testing.chaos_blows import Blow, Kind, draw_blow
from outlast.testing.chaos_judge import Books, Loss, look
from outlast.testing.chaos_lives import Ended, Hung, Order, Pace, live
from outlast.testing.chaos_verdict import Death, Verdict
from outlast.testing.power import Volume

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
GAUGES = "rollout_checkpointing.telemetry_interval_s=0.2"
"""Often, so that the tape of a life tells what was under way at its end."""
LAST = Blow(kind=Kind.TERM, at=1.0)
"""Ends the last life of a campaign that need not run to the end; it is not counted."""
BARREN_MAX = 6
"""After so many lives without a new step, one is left alone until it has made two."""


class Lineage:
    """One run directory from its first life to its end."""

    def __init__(
        self,
        verdict: Verdict,
        place: Path,
        *,
        number: int,
        rng: random.Random,
        pace: Pace,
        volume: Volume | None,
        say: Callable[[str], None],
    ) -> None:
        self._verdict = verdict
        self._place = place
        self._volume = volume
        self._run = (place if volume is None else volume.path) / "run"
        self._number = number
        self._rng = rng
        self._pace = pace
        self._say = say
        self._books = Books()
        self._barren = 0
        campaign = verdict.campaign
        shape = (*SMALL, *(REPLAYING if number % 2 == 0 else ()))
        chosen = (GAUGES, *(() if campaign.recipe else shape), *campaign.overrides)
        self._recipe = load_recipe(campaign.recipe, chosen).recipe
        options = [part for override in chosen for part in ("--set", override)]
        self._arguments = (
            *([campaign.recipe] if campaign.recipe else []),
            *options,
            "--run-dir",
            str(self._run),
        )

    def run(self, *, deadline: float) -> None:
        """Lives until one finishes, or breaks a law; then the audit."""
        order = Order(
            arguments=self._arguments,
            directory=self._place,
            grace_s=self._recipe.preemption.grace_s,
            deadline=deadline,
            volume=self._volume,
        )
        life, ended = 0, None
        while ended is None or not (self._over(ended) or self._books.violations):
            life += 1
            if time.monotonic() > deadline:
                raise Hung(f"the time of the campaign is over in life {life}")
            ended = self._life(life, order)
        if self._over(ended):
            self._close(finished=ended.finished)
        self._verdict.violations += [
            f"lineage {self._number}, {text}" for text in self._books.violations
        ]

    def _life(self, life: int, order: Order) -> Ended:
        """One life, judged."""
        before = look(self._run)
        blow, pace = self._next(life)
        ended = live(life, blow, order=order, pace=pace)
        after = look(self._run)
        loss = self._books.judge(ended.tape, before=before, after=after)
        self._note(life, ended, loss=loss)
        self._barren = 0 if after.version > before.version else self._barren + 1
        self._pace.learn(ended.tape, first_dispatch_s=ended.first_dispatch_s)
        return ended

    def _over(self, ended: Ended) -> bool:
        """Whether nothing is left to do with this run."""
        return ended.finished or ended.blow is LAST

    def _next(self, life: int) -> tuple[Blow | None, Pace]:
        """The next blow, and how long to wait for it; None to leave the run alone to its end."""
        verdict, pace = self._verdict, self._pace
        if verdict.complete:
            return (None if verdict.campaign.to_the_end else LAST), pace
        kills, cuts = verdict.kills_left, verdict.cuts_left
        is_cut = self._rng.random() * (kills + cuts) < cuts
        blow = draw_blow(self._rng, (Kind.POWER_CUT,) if is_cut else verdict.campaign.kinds)
        if self._barren >= BARREN_MAX:  # let it get somewhere before the next blow falls
            pace = Pace(life_s=4 * pace.life_s, fixed=True, start_s=pace.start_s)
            blow = draw_blow(random.Random(f"{self._number}.{life}"), (Kind.TERM,))
        return blow, pace

    def _note(self, life: int, ended: Ended, *, loss: Loss) -> None:
        verdict = self._verdict
        where = f"lineage {self._number}, life {life}"
        verdict.lives += 1
        verdict.orphans += [f"{where}: {orphan}" for orphan in ended.orphans]
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
        if not self._over(ended):
            verdict.deaths.append(Death(lineage=self._number, life=life, ended=ended, loss=loss))
            verdict.siblings_reused += loss.siblings_reused
            verdict.tokens_reused += loss.tokens_reused
        kind = str(ended.blow) if ended.blow else "undisturbed"
        if ended.cut is not None and self._volume is not None:
            cut = ended.cut
            kind += f" on {self._volume.kind}, copied in {1e3 * cut.seconds:.0f} ms x {cut.tries}"
        self._say(
            f"{where}: {kind} -> {ended.returncode}, {ended.state}; kept {loss.siblings_reused} "
            f"siblings, lost {loss.siblings_lost}; {len(self._books.violations)} violations"
        )

    def _close(self, *, finished: bool) -> None:
        verdict = self._verdict
        target = self._recipe.algorithm.max_num_steps if finished else None
        report = self._books.close(self._run, target=target)
        verdict.finished += finished
        verdict.audited += 1
        verdict.skipped += report.skipped
        verdict.repeated += report.repeated
        verdict.trained += report.trained
