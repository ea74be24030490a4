"""Checkpoint pump: durable trainer checkpoints, each with the cut of its step boundary.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| step boundaries, requests | ``step_N`` with its bundled cut | its writer | train |

Laws: S7, A2. The bundled cut is taken in the section that applies the step; the next `finish_step`
waits until the trainer has staged its copy. May import: `ports`, `runtime.board`, `runtime.store`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.cut import Anchor, AnchorKind, Cut, covered
from outlast.ports import DataPlane, PlaneHandle, Trainer
from outlast.runtime.board import Board
from outlast.runtime.store import RunStore
from outlast.telemetry import events


@dataclass(frozen=True, slots=True)
class _Pending:
    cut: Cut
    handle: PlaneHandle


class CheckpointPump:
    """At most one checkpoint is pending or in flight; `ready` makes the train pump wait for it."""

    def __init__(
        self,
        board: Board,
        *,
        save_period: int | None,
        trainer: Trainer,
        plane: DataPlane,
        store: RunStore,
    ) -> None:
        self._board = board
        self._save_period = save_period
        self._trainer = trainer
        self._plane = plane
        self._store = store
        self._pending: _Pending | None = None
        self._staged = True

    async def run(self) -> None:
        """Write what `step_finished` asks for until the life ends."""
        board = self._board
        while await board.until("checkpoint", "a step boundary", lambda: self.pending):
            await self.flush()

    async def ready(self) -> bool:
        """Wait until another `finish_step` may start; False on a stop request."""
        board, due = self._board, self._board.state.version + 1

        def free() -> bool:
            return self._pending is None or (self._staged and not self._due(due))

        return await board.until("train", "the checkpoint writer", free)

    def step_finished(self, *, final: bool) -> None:
        """Called in the section that applied a step: take its cut if a checkpoint is due."""
        state = self._board.state
        if self._save_period is None:
            state.durable(state.version)  # as durable as it gets without checkpoints
        elif final or self._due(state.version):
            self.request()

    def request(self) -> None:
        """Take the bundled cut of the current version. Nothing may be pending."""
        board = self._board
        cut = board.state.cut(
            sequence=board.take_sequence(), parent=board.parent, anchor=board.anchor
        )
        self._pending = _Pending(cut=covered(cut), handle=self._plane.freeze())
        self._staged = False

    @property
    def behind(self) -> bool:
        """No durable checkpoint covers the trainer's version."""
        behind = self._board.state.version != self._board.anchor.version
        return behind and self._save_period is not None

    @property
    def pending(self) -> bool:
        return self._pending is not None

    async def flush(self) -> None:
        """Stage, write and publish the pending checkpoint."""
        pending = self._pending
        if pending is None:
            return
        clock, board = self._board.world.clock, self._board
        began = clock.monotonic()
        staged = await self._trainer.stage()
        self._staged = True
        board.changed.notify()
        staged_at = clock.monotonic()
        board.world.perhaps("checkpoint.staged")
        tree = await self._store.open_checkpoint(pending.cut)
        try:
            await staged.write(tree.foreign)
            written_at = clock.monotonic()
            board.world.perhaps("checkpoint.written")
            async with board.publishing:
                keys = pending.cut.row_keys
                rows = await self._plane.save(pending.handle, keys, tree.rows, link=False)
                published = await self._store.commit(tree, pending.cut, rows)
        except BaseException:
            await self._store.abandon(tree)
            raise
        finally:
            pending.handle.close()
        board.world.perhaps("checkpoint.published")
        self._became_durable(pending.cut)
        board.bus.emit(
            events.CheckpointPublished(
                version=pending.cut.trainer_version,
                sequence=pending.cut.sequence,
                bytes=published.bytes_total,
                stage_s=staged_at - began,
                write_s=written_at - staged_at,
                commit_s=clock.monotonic() - written_at,
            )
        )
        board.changed.notify()

    def _became_durable(self, cut: Cut) -> None:
        board = self._board
        board.anchor = Anchor(
            kind=AnchorKind.CHECKPOINT, version=cut.trainer_version, history=cut.history
        )
        board.state.durable(cut.trainer_version)
        board.parent = cut.sequence
        self._pending = None

    def _due(self, version: int) -> bool:
        return self._save_period is not None and version % self._save_period == 0
