"""The controller: starts one life of a run, drives its pumps, and winds it down.

It owns no restart-facing state and no pump knows it. The first failure of a pump ends the run with
its cause; a stop request ends it with a last snapshot (P7). Laws: L1, L3, S9.
May import: `runtime.*`, `ports`, `model`, `errors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import StrEnum

from outlast.errors import OutlastError
from outlast.model.ids import Incarnation, TrainerVersion
from outlast.ports import DataPlane, Environment, GenerationEngine, PromptSource, Trainer
from outlast.runtime.board import Board
from outlast.runtime.checkpoint import CheckpointPump
from outlast.runtime.replay import replay
from outlast.runtime.rollout import RolloutPump
from outlast.runtime.settings import RunSettings
from outlast.runtime.snapshot import SnapshotPump
from outlast.runtime.startup import Life, begin
from outlast.runtime.store import StorePlace
from outlast.runtime.train import TrainPump
from outlast.runtime.validation import ValidationPump
from outlast.runtime.watchdog import Watchdog
from outlast.runtime.weights import WeightsPump
from outlast.telemetry import events
from outlast.telemetry.bus import Bus
from outlast.world import World


class Ending(StrEnum):
    """How a life ended in good order."""

    FINISHED = "finished"
    NOTHING_TO_DO = "nothing_to_do"
    PREEMPTED = "preempted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `Controller.run` returns; failures are exceptions."""

    ending: Ending
    version: TrainerVersion
    last_cut: str | None
    """Name of the newest published cut of this lineage."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapters:
    """The outside of a run. Plane and trainer are made per life, once its number is known."""

    engine: GenerationEngine
    environment: Environment
    prompts: PromptSource
    held_out: PromptSource | None
    make_plane: Callable[[Incarnation], DataPlane]
    make_trainer: Callable[[DataPlane], Trainer]


class Controller:
    """One life of a run: `run` once, `stop` from a signal handler at any time."""

    def __init__(
        self,
        *,
        world: World,
        bus: Bus,
        place: StorePlace,
        settings: RunSettings,
        adapters: Adapters,
    ) -> None:
        self._world = world
        self._bus = bus
        self._place = place
        self._settings = settings
        self._adapters = adapters
        self._board: Board | None = None
        self._stop_reason: str | None = None
        self._stop_deadline: float | None = None
        self._step_abandoned = False

    @property
    def board(self) -> Board | None:
        """The shared state, once the life has begun; for observers only."""
        return self._board

    def stop(self, reason: str) -> None:
        """Wind down: a last snapshot inside the grace, then `run` returns PREEMPTED."""
        if self._stop_reason is None:
            self._stop_reason = reason
            self._stop_deadline = self._world.clock.monotonic() + self._settings.grace_s
        if self._board is not None:
            self._board.request_stop(reason)

    async def run(self) -> Outcome:
        """Live. Raises the first failure; releases lock, threads and engines in every case."""
        seconds, alarm = self._settings.must_save_by_s, None
        if seconds is not None:  # counts from here, so that loading and replay are part of it
            loop = asyncio.get_running_loop()
            alarm = loop.call_later(seconds, self.stop, "checkpoint_must_save_by")
        try:
            life = await begin(
                world=self._world, bus=self._bus, place=self._place, settings=self._settings
            )
            try:
                if life.finished(self._settings.train.max_steps):
                    return self._nothing_to_do(life)
                return await self._live(life)
            finally:
                await life.close()
        finally:
            if alarm is not None:
                alarm.cancel()

    # ------------------------------------------------------------------------------ one life

    async def _live(self, life: Life) -> Outcome:
        adapters = self._adapters
        plane = adapters.make_plane(life.incarnation)
        trainer = adapters.make_trainer(plane)
        try:
            await life.load_rows(plane)
            await life.adopt()
            pumps = await self._start(life, plane=plane, trainer=trainer)
            try:
                return await self._drive(life, pumps)
            except (OutlastError, OSError) as error:
                await life.failed(error)
                raise
        finally:
            await adapters.engine.close()
            await trainer.close()
            await plane.close()

    async def _start(self, life: Life, *, plane: DataPlane, trainer: Trainer) -> _Pumps:
        """Everything between adoption and the first pump, in the order of DESIGN 5."""
        engine = self._adapters.engine
        board = self._board = life.make_board()
        if self._stop_reason is not None:
            board.request_stop(self._stop_reason)
        await engine.start()
        await engine.fence(life.incarnation)
        await trainer.start(life.trainer_directory, board.state.version)
        self._world.perhaps("start.trainer_loaded")
        pumps = self._wire(board, life, plane=plane, trainer=trainer)
        life.report(board)
        await self._watched(self._catch_up(board, trainer, pumps=pumps), pumps)
        self._world.perhaps("start.ready")
        return pumps

    async def _catch_up(self, board: Board, trainer: Trainer, *, pumps: _Pumps) -> None:
        await replay(board, trainer=trainer, checkpoints=pumps.checkpoints)
        await pumps.weights.push()

    async def _watched(self, work: Coroutine[None, None, None], pumps: _Pumps) -> None:
        """Await `work` under the watchdog: a start that hangs is reported like any stall."""
        watch = asyncio.ensure_future(pumps.watchdog.run())
        start = asyncio.ensure_future(work)
        try:
            await asyncio.wait((start, watch), return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                await watch  # raises on a stall; returns on a stop request
            await start
        finally:
            watch.cancel()
            start.cancel()

    def _wire(self, board: Board, life: Life, *, plane: DataPlane, trainer: Trainer) -> _Pumps:
        adapters, settings = self._adapters, self._settings
        checkpoints = CheckpointPump(
            board, settings.checkpoints, trainer=trainer, plane=plane, store=life.store
        )
        validation = None
        if settings.validation is not None and adapters.held_out is not None:
            validation = ValidationPump(
                board,
                settings.validation,
                engine=adapters.engine,
                environment=adapters.environment,
                prompts=adapters.held_out,
            )
        return _Pumps(
            rollout=RolloutPump(
                board,
                settings.rollout,
                engine=adapters.engine,
                environment=adapters.environment,
                prompts=adapters.prompts,
                plane=plane,
            ),
            train=TrainPump(board, settings.train, trainer=trainer, checkpoints=checkpoints),
            weights=WeightsPump(board, trainer=trainer, engine=adapters.engine),
            checkpoints=checkpoints,
            snapshots=SnapshotPump(board, settings.snapshots, plane=plane, store=life.store),
            validation=validation,
            watchdog=Watchdog(board, settings.watchdog),
        )

    async def _drive(self, life: Life, pumps: _Pumps) -> Outcome:
        """Run the pumps until training is done or a stop is requested, then wind down."""
        board = life.board
        failure: OutlastError | OSError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                workers = [
                    tasks.create_task(pump(), name=name) for name, pump in pumps.workers().items()
                ]
                for name, pump in pumps.helpers().items():
                    tasks.create_task(pump(), name=name)
                tasks.create_task(life.heartbeat(), name="heartbeat")
                tasks.create_task(self._insist(board, workers), name="grace")
                if pumps.validation is not None:
                    validation = tasks.create_task(pumps.validation.run(), name="validation")
                    await asyncio.wait(workers)
                    validation.cancel()
        except* (OutlastError, OSError) as failures:
            failure = _first(failures)  # raised below: some Pythons group what is raised here
        if failure is not None:
            raise failure
        preempted = board.stopping is not None
        if preempted:
            return await self._wind_down(life, pumps)
        if pumps.validation is not None:
            await pumps.weights.catch_up()
            await pumps.validation.finish()
        await self._last_words(pumps, finished=True)
        return await self._ending(life, Ending.FINISHED, reason=self._finished_because(board))

    def _finished_because(self, board: Board) -> str:
        """Which of the two good ends it was; one that is short of the target is also warned of."""
        version, target = board.state.version, self._settings.train.max_steps
        if version >= target:
            return f"the run reached its target, step {version}"
        reason = (
            f"the data ended at step {version} of {target}; to go on, raise "
            "algorithm.max_num_epochs or give more prompts"
        )
        self._bus.emit(events.Warned(message=reason))
        return reason

    async def _insist(self, board: Board, workers: list[asyncio.Task[None]]) -> None:
        """After a stop request, leave workers behind that use up half of the grace (L3).

        Nothing is lost by it: a step that was not applied happens again from the anchor.
        """
        while not board.over:
            await board.waiting("grace", "a stop request")
        if board.stopping is None:
            return
        _, late = await asyncio.wait(workers, timeout=self._grace_left() / 2)
        for worker in late:
            message = f"the {worker.get_name()} pump did not come to rest and is left behind"
            self._bus.emit(events.Warned(message=message))
            self._step_abandoned |= worker.get_name() == "train"
            worker.cancel()

    def _grace_left(self) -> float:
        now = self._world.clock.monotonic()
        deadline = self._stop_deadline or now + self._settings.grace_s
        return max(0.0, deadline - now)

    async def _wind_down(self, life: Life, pumps: _Pumps) -> Outcome:
        """After a stop request: the last snapshot, if the grace allows it."""
        board = life.board
        try:
            async with asyncio.timeout(self._grace_left()):
                await self._last_words(pumps, finished=False)
        except TimeoutError:
            message = "the grace ended before the last snapshot; the previous one stands"
            self._bus.emit(events.Warned(message=message))
        return await self._ending(life, Ending.PREEMPTED, reason=board.stopping or "")

    async def _last_words(self, pumps: _Pumps, *, finished: bool) -> None:
        """Publish the last cut; first make the trainer's version durable, unless the run goes on
        later and the cut can do without."""
        self._world.perhaps("stop.drained")
        snapshots = self._settings.snapshots
        covered = snapshots.replay and snapshots.interval_s is not None
        if not self._step_abandoned:  # else nobody knows which version the trainer holds
            await pumps.checkpoints.flush()
            if pumps.checkpoints.behind and (finished or not covered):
                pumps.checkpoints.request()
                await pumps.checkpoints.flush()
        if snapshots.interval_s is not None:
            await pumps.snapshots.attempt(final=True)
        self._world.perhaps("stop.saved")

    async def _ending(self, life: Life, ending: Ending, *, reason: str) -> Outcome:
        board = life.board
        last = life.store.last_published or life.restored_name
        await life.ended(ending.value)
        self._bus.emit(
            events.RunEnded(reason=ending.value, trainer_version=board.state.version, last_cut=last)
        )
        return Outcome(ending=ending, version=board.state.version, last_cut=last, reason=reason)

    def _nothing_to_do(self, life: Life) -> Outcome:
        version = life.restored_version
        last = life.restored_name
        self._bus.emit(
            events.RunEnded(
                reason=Ending.NOTHING_TO_DO.value, trainer_version=version, last_cut=last
            )
        )
        return Outcome(
            ending=Ending.NOTHING_TO_DO,
            version=version,
            last_cut=last,
            reason=f"the run is at step {version}, its target is {self._settings.train.max_steps}",
        )


Pump = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pumps:
    rollout: RolloutPump
    train: TrainPump
    weights: WeightsPump
    checkpoints: CheckpointPump
    snapshots: SnapshotPump
    validation: ValidationPump | None
    watchdog: Watchdog

    def workers(self) -> dict[str, Pump]:
        """Pumps that the end of a life waits for."""
        return {"rollout": self.rollout.run, "train": self.train.run}

    def helpers(self) -> dict[str, Pump]:
        """Pumps that come to rest by themselves when the life ends."""
        return {
            "weights": self.weights.run,
            "checkpoint": self.checkpoints.run,
            "snapshot": self.snapshots.run,
            "watchdog": self.watchdog.run,
        }


def _first(failures: BaseExceptionGroup[OutlastError | OSError]) -> OutlastError | OSError:
    """The first failure, with its own cause; later ones are consequences."""
    for failure in failures.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            return _first(failure)
        return failure
    raise AssertionError("an exception group is never empty")
