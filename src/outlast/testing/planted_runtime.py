"""Planted bugs of the runtime: pumps, admission, weights, the order of the start. See `planted`.

May import: `runtime`, `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from outlast.durable.files import remove_tree
from outlast.durable.inspection import CutReader
from outlast.durable.listing import read_run
from outlast.errors import DiskError
from outlast.model.ids import GroupId, Incarnation, TrainerVersion
from outlast.runtime import attempt
from outlast.runtime.board import Board
from outlast.runtime.checkpoint import CheckpointPump
from outlast.runtime.rollout import RolloutPump
from outlast.runtime.snapshot import SnapshotPump
from outlast.runtime.startup import Life
from outlast.runtime.train import TrainPump
from outlast.runtime.weights import WeightsPump
from outlast.testing.fake_engine import FakeEngine

Bug = Callable[[], AbstractContextManager[None]]


@contextmanager
def row_key_without_attempt() -> Iterator[None]:
    """Rows are keyed by (group, sibling) and the first attempt."""
    real = attempt._row

    def row(key: Any, *args: Any, **kw: Any) -> Any:
        return real(msgspec.structs.replace(key, n=0), *args, **kw)

    with patch.object(attempt, "_row", row):
        yield


@contextmanager
def skip_push_if_version_equal() -> Iterator[None]:
    """No weight push when the engine serves that version number already, of whatever life."""
    real = WeightsPump.push

    async def push(self: WeightsPump) -> None:
        served, board = self._engine.served, self._board
        if served is not None and served.version == board.state.version:
            board.served = msgspec.structs.replace(served, incarnation=board.state.incarnation)
            return
        await real(self)

    with patch.object(WeightsPump, "push", push):
        yield


@contextmanager
def chunk_minimum_not_relaxed() -> Iterator[None]:
    """The last chunk of a step waits for a full chunk, which never comes."""

    def select(self: TrainPump, current: Any) -> tuple[GroupId, ...]:
        state = self._board.state
        missing = state.wanted(current.step) - len(current.claimed)
        if missing <= 0 or self._too_small(current) or missing < self._settings.chunk_groups_min:
            return ()
        return state.select(at_least=self._settings.chunk_groups_min, at_most=missing)

    with patch.object(TrainPump, "_select", select):
        yield


@contextmanager
def admission_on_trainer_version() -> Iterator[None]:
    """Admission looks at the trainer's version, not at what engines acknowledged."""

    def acknowledged(self: Board) -> TrainerVersion:
        return self.state.version

    with patch.object(Board, "acknowledged", property(acknowledged)):
        yield


@contextmanager
def io_error_taken_for_corruption() -> Iterator[None]:
    """A read error at the start condemns the cut, and an older one is used."""
    real = CutReader._verify

    def verify(self: CutReader, found: Any) -> str | None:
        try:
            return real(self, found)
        except DiskError as error:
            return str(error)

    with patch.object(CutReader, "_verify", verify):
        yield


@contextmanager
def anchor_not_staged() -> Iterator[None]:
    """The next optimizer step does not wait until the checkpoint's copy is staged."""
    real = CheckpointPump.ready

    async def ready(self: CheckpointPump) -> bool:
        self._staged = True
        return await real(self)

    with patch.object(CheckpointPump, "ready", ready):
        yield


@contextmanager
def handle_frozen_too_early() -> Iterator[None]:
    """The plane is frozen before an await, the ledger is read after it: a cut of two moments."""
    real = SnapshotPump.attempt

    async def attempt(self: SnapshotPump, *, final: bool = False) -> bool:
        plane = self._plane
        early = plane.freeze()
        await self._board.world.offload(int)
        await self._board.world.offload(int)
        with patch.object(plane, "freeze", lambda: early):
            return await real(self, final=final)

    with patch.object(SnapshotPump, "attempt", attempt):
        yield


@contextmanager
def sweep_before_adoption() -> Iterator[None]:
    """Debris is deleted before the run has a new owner."""
    real = Life.load_rows

    async def load_rows(self: Life, plane: Any) -> None:
        place = self._place
        for path in read_run(place.files, place.run_dir, verify="names").debris:
            if place.files.stat(place.run_dir / path).is_dir:
                remove_tree(place.files, place.run_dir / path)
        await real(self, plane)

    with patch.object(Life, "load_rows", load_rows):
        yield


@contextmanager
def engines_not_fenced() -> Iterator[None]:
    """A surviving engine goes on with the requests of the dead life."""

    async def fence(self: FakeEngine, incarnation: Incarnation, /) -> None:
        self._fence = incarnation

    with patch.object(FakeEngine, "fence", fence):
        yield


@contextmanager
def restored_open_groups_forgotten() -> Iterator[None]:
    """Groups that were in flight are not launched again."""
    with patch.object(RolloutPump, "_restored", lambda self: []):
        yield


RUNTIME_BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        row_key_without_attempt,
        skip_push_if_version_equal,
        chunk_minimum_not_relaxed,
        admission_on_trainer_version,
        io_error_taken_for_corruption,
        anchor_not_staged,
        handle_frozen_too_early,
        sweep_before_adoption,
        engines_not_fenced,
        restored_open_groups_forgotten,
    )
}
