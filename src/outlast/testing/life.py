"""One life of a simulated controller: boot it on a disk, drive it, end it in any way.

The real model, durable layer, runtime and memory plane; everything else is a fake. Death comes
first to the pulse, so that nothing of the dead life touches disk, clock or engine again.
May import: `runtime`, `adapters.planes.memory`, `testing`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from unittest.mock import MagicMock

from outlast.adapters.planes.memory import MemoryPlane
from outlast.durable.files import Files
from outlast.errors import InvariantError
from outlast.model.groups import Receipt
from outlast.model.ids import AttemptKey, Incarnation
from outlast.ports import (
    DataPlane,
    Environment,
    PlaneHandle,
    PromptSource,
    SavedFile,
)
from outlast.rows import Row
from outlast.runtime.controller import Adapters, Controller, Outcome
from outlast.runtime.settings import RunSettings
from outlast.runtime.store import StorePlace
from outlast.telemetry.bus import Bus
from outlast.testing.fake_engine import FakeEngine
from outlast.testing.fake_trainer import FakeTrainer
from outlast.testing.laws import Auditor
from outlast.testing.loop import make_loop
from outlast.testing.scripts import TrainerProfile
from outlast.testing.world import Marks, Pulse, StoreSpeed, sim_world

RUN_DIR = PurePosixPath("/run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a life finds: fakes, disk and scripts, all older than the life."""

    files: Files
    engine: FakeEngine
    environment: Environment
    prompts: PromptSource
    trainer: TrainerProfile
    speed: StoreSpeed
    marks: Marks
    auditor: Auditor


class WatchedPlane:
    """A plane that tells the auditor what was stored and when it was frozen."""

    def __init__(self, inner: DataPlane, auditor: Auditor, *, pulse: Pulse) -> None:
        self._inner, self.auditor, self._pulse = inner, auditor, pulse
        self._sequences: dict[int, int] = {}  # id of a handle -> sequence of its cut

    async def put(self, rows: Sequence[Row], /) -> tuple[str, ...]:
        self._pulse.check()
        digests = await self._inner.put(rows)
        for row, digest in zip(rows, digests, strict=True):
            self.auditor.stored(row, digest)
        return digests

    async def get(self, keys: Sequence[AttemptKey], /) -> tuple[Row, ...]:
        self._pulse.check()
        return await self._inner.get(keys)

    async def release(self, keys: Sequence[AttemptKey], /) -> None:
        self._pulse.check()
        self.auditor.released(keys)
        await self._inner.release(keys)

    def freeze(self) -> PlaneHandle:
        self._pulse.check()
        sequence = self.auditor.frozen()
        handle = self._inner.freeze()
        self._sequences[id(handle)] = sequence
        return handle

    async def save(
        self, handle: PlaneHandle, *, keys: frozenset[AttemptKey], directory: Path, link: bool
    ) -> tuple[SavedFile, ...]:
        self._pulse.check()
        self.auditor.saving(self._sequences[id(handle)], keys, bundled=not link)
        return await self._inner.save(handle, keys=keys, directory=directory, link=link)

    async def load(self, directory: Path, keys: frozenset[AttemptKey], /) -> None:
        self._pulse.check()
        await self._inner.load(directory, keys)

    async def close(self) -> None:
        self._pulse.check()
        await self._inner.close()


class SimLife:
    """One controller in one loop, until it returns, fails or is killed."""

    def __init__(
        self, number: int, settings: RunSettings, *, outside: Outside, seed: int, start_s: float
    ) -> None:
        self.number = number
        self.pulse = Pulse()
        self._settings, self._outside = settings, outside
        rng = random.Random(f"{seed}/life/{number}")
        self._rng = random.Random(f"{seed}/fakes/{number}")
        self.loop = make_loop(rng, start=start_s)
        self.world = sim_world(
            self.loop, self.pulse, rng=rng, speed=outside.speed, marks=outside.marks
        )
        self.bus = Bus(self.world.clock, outside.auditor)
        self.trainer: FakeTrainer | None = None
        self.plane: WatchedPlane | None = None
        self.controller = Controller(
            world=self.world,
            bus=self.bus,
            place=StorePlace(outside.files, RUN_DIR),
            settings=settings,
            adapters=self._adapters(),
        )
        self.task: asyncio.Task[Outcome] | None = None
        self._watching = False

    def _adapters(self) -> Adapters:
        outside = self._outside
        outside.engine.attach(self.pulse)
        outside.engine.on_update = outside.auditor.updated
        outside.engine.on_request = outside.auditor.requested
        outside.engine.on_chunk = outside.auditor.streamed
        return Adapters(
            engine=outside.engine,
            environment=outside.environment,
            prompts=outside.prompts,
            held_out=outside.prompts if self._settings.validation else None,
            make_plane=self._make_plane,
            make_trainer=self._make_trainer,
        )

    def _make_plane(self, incarnation: Incarnation) -> DataPlane:
        inner = MemoryPlane(
            self._outside.files,
            RUN_DIR / "segments",
            incarnation=incarnation,
            offload=self.world.offload,
        )
        self.plane = WatchedPlane(inner, self._outside.auditor, pulse=self.pulse)
        return self.plane

    def _make_trainer(self, plane: DataPlane) -> FakeTrainer:
        trainer = FakeTrainer(
            plane,
            self._outside.files,
            profile=self._outside.trainer,
            pulse=self.pulse,
            seed=self._rng.getrandbits(32),
        )
        trainer.on_trained = self._outside.auditor.trained
        trainer.on_loaded = self._outside.auditor.loaded
        self.trainer = trainer
        return trainer

    # ------------------------------------------------------------------------------- driving

    @property
    def over(self) -> bool:
        """Killed, returned or failed."""
        return not self.pulse.alive or (self.task is not None and self.task.done())

    def advance(self, stop: Callable[[], bool], *, before: float | None = None) -> None:
        """Drive until `stop()`, the end of the life, or virtual time `before`. Checks laws."""
        auditor = self._outside.auditor
        if self.task is None:
            self.task = self.loop.create_task(self.controller.run(), name="controller")

        def after() -> bool:
            if not self._watching and self.pulse.alive and self.controller.board is not None:
                self._watching = True
                auditor.watch(self.controller.board)
            auditor.turn(self.loop.time())
            return auditor.broken is not None or self.over or stop()

        self.loop.advance(after, before=before)
        if auditor.broken is not None:
            raise auditor.broken

    def deliver(self, receipt: Receipt) -> str:
        """Offer a result to the ledger as a late, duplicate or foreign one; returns its verdict."""
        board = self.controller.board
        assert board is not None
        ledger = board.state.ledger
        before = ledger.image()
        try:
            verdict = str(board.state.seal(receipt))
        except InvariantError as error:
            verdict = f"accepted as {error}"
        same = ledger.image() == before
        self._outside.auditor.require(
            same and not verdict.startswith("accepted"),
            f"S3: {receipt.key} came again and was {verdict}",
        )
        return verdict

    def unwatch(self) -> None:
        """No law watches the life from here on: another one has its run."""
        engine, deaf = self._outside.engine, MagicMock(spec=Auditor)
        self.bus.clear()
        engine.on_update, engine.on_request, engine.on_chunk = (
            deaf.updated,
            deaf.requested,
            deaf.streamed,
        )
        if self.plane is not None:
            self.plane.auditor = deaf
        if self.trainer is not None:
            self.trainer.on_trained, self.trainer.on_loaded = deaf.trained, deaf.loaded

    def end(self, cause: str) -> None:
        """The process is gone: nothing of it runs any more."""
        self.pulse.kill(cause)
        self.loop.close()
