"""`Simulation`: a whole run of Outlast in virtual time, to crash as you like.

    sim = Simulation(prompts=12, siblings=2, groups_per_step=2, steps=4, sampler="windowed", seed=7)
    sim.engine.script(Answer(hangs=True), group=1, sibling=0, attempt=0)
    sim.run_until(step=2)
    sim.kill()
    sim.resume()
    sim.run()
    assert sorted(sim.trained) == [1, 2, 3, 4]

The real model, durable layer, runtime and memory plane run on an in-memory crash disk; engine,
trainer, environment and prompts are fakes in virtual time, or your own. Every law of
`docs/laws.md` that can be judged from outside is checked after every callback; a broken one raises
`LawBroken`. The same arguments and calls give the same run, in every process.
May import: `testing`, `runtime`, `durable`.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.audit import AuditReport, audit_run
from outlast.durable.cutcodec import load_cut
from outlast.durable.lineage import cut_state, next_incarnation
from outlast.durable.listing import read_run
from outlast.errors import CorruptData
from outlast.model.ids import Incarnation
from outlast.ports import Environment, PromptSource
from outlast.telemetry import events
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.endings import GRACE_SLACK_S, Ended, SnapshotVerdict, judge_end
from outlast.testing.fake_engine import FakeEngine
from outlast.testing.fake_environment import FakeEnvironment, FakePrompts
from outlast.testing.ghosts import Ghosts
from outlast.testing.law_terms import Bounds, LawBroken
from outlast.testing.laws import Auditor
from outlast.testing.life import RUN_DIR, Outside, SimLife
from outlast.testing.readings import Readings
from outlast.testing.scripts import EngineProfile, TrainerProfile
from outlast.testing.shape import RunShape, SamplerFactory, settings_of
from outlast.testing.world import Marks, StoreSpeed


class Simulation(Readings):
    """A run directory, its outside, and the lives that come and go on it."""

    def __init__(
        self,
        shape: RunShape | None = None,
        *,
        seed: int = 0,
        sampler: SamplerFactory | str | None = None,
        environment: Environment | None = None,
        prompt_source: PromptSource | None = None,
        engine: EngineProfile | None = None,
        trainer: TrainerProfile | None = None,
        store: StoreSpeed | None = None,
        **changes: object,
    ) -> None:
        """`changes` are fields of `RunShape`; `sampler` is a built-in name or P -> your sampler."""
        if isinstance(sampler, str):
            changes["sampler"], sampler = sampler, None
        self.shape = msgspec.convert(
            {**msgspec.to_builtins(shape or RunShape()), **changes}, RunShape
        )
        self.seed = seed
        self.engine = FakeEngine(seed=seed, profile=engine)
        self.environment: Environment = environment or FakeEnvironment()
        self.prompts: PromptSource = prompt_source or FakePrompts(self.shape.prompts)
        self.trainer = trainer or TrainerProfile()
        self.store = store or StoreSpeed()
        self.marks = Marks()
        self.disk = CrashDisk()
        self.power_cuts = False
        """Whether kills at a disk change or a mark also lose what was not synced."""
        self.events: list[events.AnyEvent] = []
        """Events of the life that runs, or ran last."""
        self.ended: list[Ended] = []
        """One entry per life that is over."""
        self._sampler = sampler
        self._rng = random.Random(f"{seed}/simulation")
        self._trace = hashlib.sha256()
        self._now = 0.0
        self._life: SimLife | None = None
        self._kill_at_change: int | None = None
        self._term_at: float | None = None
        self._adopted = False
        self.auditor = Auditor(self._bounds())
        self._restored: list[events.Restored] = []
        self._ghosts = Ghosts(self.engine, self.auditor, rng=self._rng)
        self.resume()

    # ------------------------------------------------------------------------------- driving

    @property
    def now(self) -> float:
        """Virtual seconds since the first life began."""
        return self._life.loop.time() if self._life is not None else self._now

    @property
    def life(self) -> SimLife:
        """The life that runs."""
        if self._life is None:
            raise RuntimeError("no life is running: call resume() first")
        return self._life

    @property
    def lives(self) -> int:
        """Lives so far, the running one included."""
        return len(self.ended) + (self._life is not None)

    @property
    def running(self) -> bool:
        """Whether a life is running."""
        return self._life is not None

    def resume(self, **changes: object) -> None:
        """Start the next life on what stands on the disk, with other settings if given."""
        if self._life is not None:
            raise RuntimeError("a life is running: kill() it or let it end")
        if changes:
            fields = {**msgspec.to_builtins(self.shape), **changes}
            self.shape = msgspec.convert(fields, RunShape)
        settings = settings_of(self.shape, seed=self.seed, sampler=self._sampler)
        outside = Outside(
            files=self.disk,
            engine=self.engine,
            environment=self.environment,
            prompts=self.prompts,
            trainer=self.trainer,
            speed=self.store,
            marks=self.marks,
            auditor=self.auditor,
        )
        number = len(self.ended) + 1
        life = SimLife(number, settings, outside=outside, seed=self.seed, start_s=self._now)
        self.marks.begin(life.pulse, kill_at=None)
        self.disk.guard = life.pulse.check
        self.disk.on_change = self._changed
        self.events, self._term_at, self._adopted = [], None, False
        incarnation = self._survey()
        self.auditor.begin(
            incarnation,
            life.pulse,
            engine=lambda: (*self.engine.loaded, self.engine.foreign_requests(incarnation)),
            bounds=self._bounds(),
            tasks=lambda: {task.get_name() for task in life.loop.tasks()},
        )
        life.bus.add(self._record)
        self.auditor.faulty = self.disk.fault is not None
        self._life = life

    def run_until(
        self,
        *,
        step: int | None = None,
        seconds: float | None = None,
        snapshots: int | None = None,
        when: Callable[[], bool] | None = None,
    ) -> bool:
        """Drive the life until it has finished `step`, published `snapshots` more cuts, `seconds`
        have passed, or `when()` holds. False when the life ended first.

        Raises LawBroken, Deadlock or Livelock.
        """
        life, since = self.life, self.auditor.tally.outcomes["published"]

        def reached() -> bool:
            board = life.controller.board
            if step is not None and board is not None and board.state.version >= step:
                return True
            published = self.auditor.tally.outcomes["published"] - since
            if snapshots is not None and published >= snapshots:
                return True
            return when is not None and when()

        before = None if seconds is None else life.loop.time() + seconds
        life.advance(reached, before=before)
        if life.over:
            self._over()
            return False
        return True

    def run(self, *, limit_s: float = 50_000.0) -> Ended:
        """Drive the life to its end (L1: within `limit_s` virtual seconds)."""
        law = "L1"
        if self._term_at is not None:
            law, limit_s = "L3", self._term_at + self.shape.grace_s + GRACE_SLACK_S - self.now
        if self.run_until(seconds=limit_s):
            raise LawBroken(f"{law}: the life is not over after {limit_s:.0f} s; {self._waits()}")
        return self.ended[-1]

    def kill(self, *, power_cut: bool = False) -> None:
        """End the life like SIGKILL; `power_cut` also loses what was not synced, by chance."""
        self.life.pulse.kill("killed")
        self._over(power_cut=power_cut)

    def sigterm(self) -> None:
        """Ask the life to stop, as the signal handler does; `run()` then drives it to its end."""
        self._term_at = self.life.loop.time()
        self.life.controller.stop("SIGTERM")

    def kill_at(
        self, *, disk_change: int | None = None, mark: tuple[str, int] | None = None
    ) -> None:
        """Let the life die at its n-th change of the disk, or at the n-th hit of a mark."""
        if disk_change is not None:
            self._kill_at_change = disk_change
        if mark is not None:
            self.marks.kill_at = mark

    def fail_disk(self, kind: FaultKind | str | None, *, once: bool = False, skip: int = 0) -> None:
        """Let disk calls fail, after `skip` more, until repaired (None) or just `once`."""
        self.auditor.faulty = kind is not None
        if kind is None:
            self.disk.fault = None
        else:
            at = self.disk.calls + skip
            self.disk.fault = Fault(at, FaultKind(kind), persistent=not once)

    def close(self) -> None:
        """Drop a life that still runs, without judging it."""
        if self._life is not None:
            self._now = self._life.loop.time()
            self._life.end("closed")
            self._life = None

    def leave_behind(self) -> SimLife:
        """Let the life stand still for good or until `takeover` wakes it; the next one gets an
        engine of its own. Nothing more of it is judged."""
        life, self._life = self.life, None
        life.unwatch()
        self._now = life.loop.time()
        self.engine = FakeEngine(seed=self.seed, profile=self.engine.profile)
        self._ghosts = Ghosts(self.engine, self.auditor, rng=self._rng)
        self.ended.append(Ended("killed", 137, "left behind"))
        self.auditor.ended("killed")
        return life

    # ------------------------------------------------------------------------------- reading

    def snapshots(self) -> list[SnapshotVerdict]:
        """Every cut on disk with its verdict, oldest first."""
        with self._reading():
            listing = read_run(self.disk, RUN_DIR, verify="payload")
        found = []
        for cut in listing.cuts:
            verdict = cut_state(listing, cut)
            manifest = cut.manifest
            found.append(
                SnapshotVerdict(
                    name=cut.path.name,
                    sequence=None if manifest is None else manifest.sequence,
                    trainer_version=None if manifest is None else manifest.trainer_version,
                    verdict=verdict,
                    reason=cut.defect or "",
                )
            )
        return sorted(found, key=lambda cut: cut.sequence or 0)

    def audit(self) -> AuditReport:
        """`outlast audit` of the run directory as it stands."""
        with self._reading():
            return audit_run(self.disk, RUN_DIR)

    # ------------------------------------------------------------------------------ internals

    def _bounds(self) -> Bounds:
        shape, store = self.shape, self.store
        settings = settings_of(shape, seed=self.seed, sampler=self._sampler)
        return Bounds(
            siblings=shape.siblings,
            groups_per_step=shape.groups_per_step,
            whole_groups=shape.level == "prompt_group",
            keeps_tokens=shape.level == "token",
            max_lag=settings.sampler().max_lag,
            interval_s=shape.interval_s,
            save_slack_s=2.0 + 40 * store.typical_s + 6 * store.slow_s * (store.slow_share > 0),
            keep=shape.keep_latest_k,
            checkpoints_only=shape.restore_mode == "trainer_checkpoint",
            replay=shape.anchor_policy == "replay",
        )

    def _survey(self) -> Incarnation:
        """Look at the disk before a life: its number, the lineage, and A3: live names are whole."""
        with self._reading():
            try:
                listing = read_run(self.disk, RUN_DIR, verify="manifest")
            except CorruptData as error:
                raise LawBroken(f"A3: {error}") from error
            defects = []
            for cut in listing.cuts:
                try:
                    load_cut(self.disk, RUN_DIR, found=cut)
                except CorruptData as error:
                    defects.append(str(error))
        self.auditor.require(not defects, f"A3: a live name that is not whole: {defects}")
        if listing.incarnations:
            record = listing.incarnations[-1]
            self.auditor.continue_from(record.restored_from, record.number)
        return next_incarnation(listing)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Look at the disk from outside: no faults, no death, no marks."""
        disk, guard, fault = self.disk, self.disk.guard, self.disk.fault
        calls = disk.calls
        disk.guard, disk.fault = lambda: None, None
        try:
            yield
        finally:
            disk.guard, disk.fault, disk.calls = guard, fault, calls

    def _changed(self, what: str) -> None:
        if not self._adopted:
            self._check_untouched(what)
        if self._kill_at_change is None:
            return
        self._kill_at_change -= 1
        if self._kill_at_change <= 0:
            self._kill_at_change = None
            self.life.pulse.kill(f"killed at {what}")
            self.life.pulse.check()

    def _check_untouched(self, what: str) -> None:
        """A6: before adoption nothing but the lock and the run directory itself changes."""
        operation, path = what.split(" ", 1)
        place = PurePosixPath(path)
        if place.parent == RUN_DIR / "incarnations":
            self._adopted = True
            return
        first = (RUN_DIR, RUN_DIR.parent, RUN_DIR / "run.json", RUN_DIR / "lock")
        made = operation in ("mkdir", "fsync_dir") or place.name.endswith("_run.json")
        self.auditor.require(place in first or made, f"A6: {what} before the run was adopted")

    def _record(self, event: events.AnyEvent, wall: float, /) -> None:
        """Sink: keep the event, and schedule what its script adds."""
        life = self._life
        if life is None or not life.pulse.alive:
            return
        self.events.append(event)
        self._trace.update(f"{wall:.6f}".encode() + msgspec.json.encode(event, order="sorted"))
        if isinstance(event, events.Restored):
            self._restored.append(event)
        elif isinstance(event, events.SnapshotPublished):
            self._check_disk_bounds()
        elif isinstance(event, events.SiblingSealed):
            self._ghosts.sealed(life, event.key)
        elif isinstance(event, events.AttemptDispatched):
            self._ghosts.dispatched(life, event.key)

    def _check_disk_bounds(self) -> None:
        """S12 right after a publication and its retention."""
        with self._reading():
            found = map(names.parse_snapshot, self.disk.list(RUN_DIR / "snapshots"))
            live = [sequence for sequence in found if sequence in self.auditor.lineage]
            segments = self.disk.list(RUN_DIR / "segments")
        self.auditor.check_disk(live=len(live), segments=len(segments))

    def _waits(self) -> str:
        board = self.life.controller.board
        waits = board.waits() if board is not None else ()
        listed = "; ".join(f"{who} waits for {what}" for who, what in waits) or "nobody waits"
        return f"{listed}; {self.life.loop.report()}"

    def _over(self, *, power_cut: bool = False) -> None:
        """Bury the life, judge its end, and leave the disk as the end left it."""
        life = self.life
        ended = judge_end(life)
        self._now = life.loop.time()
        life.end(ended.how)
        self.ended.append(ended)
        self._life = None
        self._kill_at_change = None
        self._trace.update(f"{self._now:.6f}/{ended.how}".encode())
        cut = power_cut or (self.power_cuts and ended.how == "killed")
        self.disk = self.disk.crash(self._rng) if cut else self.disk.kill()
        self._check_end(ended)

    def _check_end(self, ended: Ended) -> None:
        auditor, grace = self.auditor, self.shape.grace_s
        auditor.ended(ended.how)
        if self._term_at is not None and ended.how != "killed":
            took = self._now - self._term_at
            auditor.require(
                took <= grace + GRACE_SLACK_S,
                f"L3: {took:.1f} s from SIGTERM to the end, the grace is {grace:.0f} s",
            )
            calm = ended.how in ("preempted", "nothing_to_do", "finished")
            calm = calm or auditor.faulty or "TrainerBroke" in ended.message
            auditor.require(calm, f"L3: SIGTERM ended the life with {ended}")
        if auditor.broken is not None:
            raise auditor.broken
