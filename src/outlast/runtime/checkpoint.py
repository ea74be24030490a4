"""Checkpoint pump: durable trainer checkpoints, each with the cut of its step boundary.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| step boundaries, requests | ``step_N`` with its bundled cut | its writer | train |

Laws: S7, A2. The bundled cut is taken in the section that applies the step; the next `finish_step`
waits until the trainer has staged its copy. May import: `ports`, `runtime.board`, `runtime.store`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.errors import DiskFull
from outlast.model.cut import Anchor, AnchorKind, Cut, covered
from outlast.model.groups import GroupState
from outlast.model.ids import AttemptKey
from outlast.ports import DataPlane, PlaneHandle, Trainer
from outlast.runtime.board import Board
from outlast.runtime.prefixes import Frozen, prefix_refs
from outlast.runtime.store import RunStore
from outlast.telemetry import events

BYTES_PER_TOKEN = 13
"""Of a response: id, logprob and version of four bytes each, and the loss mask."""


@dataclass(frozen=True, slots=True)
class _Pending:
    cut: Cut
    handle: PlaneHandle
    prefixes: Frozen
    at: float
    unsaved: frozenset[AttemptKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When trainer checkpoints are written.

    `save_period` in steps, None writes none (and nothing survives the process). With `replay`,
    snapshots need no checkpoint of their own step; then `max_replay_steps` and
    `applied_bytes_max` (row bytes of APPLIED groups) ask for one ahead of the period.
    """

    save_period: int | None
    replay: bool
    max_replay_steps: int
    applied_bytes_max: int


class CheckpointPump:
    """At most one checkpoint is pending or in flight; `ready` makes the train pump wait for it."""

    def __init__(
        self,
        board: Board,
        settings: CheckpointSettings,
        *,
        trainer: Trainer,
        plane: DataPlane,
        store: RunStore,
    ) -> None:
        self._board = board
        self._settings = settings
        self._trainer = trainer
        self._plane = plane
        self._store = store
        self._pending: _Pending | None = None
        self._staged = True

    async def run(self) -> None:
        """Write what `step_finished` asks for until the life ends."""
        board = self._board
        while await board.until("checkpoint", "a step boundary", condition=lambda: self.pending):
            try:
                await self.flush()
            except DiskFull as error:
                self._put_off(error)

    def _put_off(self, error: DiskFull) -> None:
        """Training goes on without this checkpoint; the next boundary asks for one again."""
        assert self._pending is not None
        version, self._pending = self._pending.cut.trainer_version, None
        message = f"trainer checkpoint of step {version} skipped, disk full: {error}"
        self._board.bus.emit(events.Warned(message=message))
        self._board.changed.notify()

    async def ready(self) -> bool:
        """Wait until another `finish_step` may start; False on a stop request.

        Under anchor policy exact the writer must also be free for the step that comes, since a
        step without its checkpoint would leave rollouts uncovered.
        """

        def free() -> bool:
            due = self._due(self._board.state.version + 1)
            waits = due and not self._settings.replay
            return self._pending is None or (self._staged and not waits)

        return await self._board.until("train", "the checkpoint writer", condition=free)

    def step_finished(self, *, final: bool) -> None:
        """Called in the section that applied a step: take its cut if a checkpoint is due.

        While one is in flight a due one is put off: `_overdue` asks for it at the next boundary.
        """
        state = self._board.state
        if self._settings.save_period is None:
            state.durable(state.version)  # as durable as it gets without checkpoints
        elif self._pending is None and (final or self._due(state.version) or self._overdue()):
            self.request()

    def wanted_in_replay(self, replayed: int) -> bool:
        """Whether half the bound has been replayed since the last checkpoint."""
        return 2 * replayed >= self._settings.max_replay_steps

    def request(self) -> None:
        """Take the bundled cut of the current version. Nothing may be pending."""
        board = self._board
        prefixes = board.frozen_prefixes()
        cut = board.state.cut(
            sequence=board.take_sequence(),
            parent=board.parent,
            anchor=board.anchor,
            prefixes=prefix_refs(prefixes),
        )
        self._pending = _Pending(
            cut=covered(cut),
            handle=self._plane.freeze(),
            prefixes=prefixes,
            at=board.world.clock.monotonic(),
            unsaved=frozenset(board.sealed_since_cut),
        )
        self._staged = False

    @property
    def behind(self) -> bool:
        """No durable checkpoint covers the trainer's version."""
        behind = self._board.state.version != self._board.anchor.version
        return behind and self._settings.save_period is not None

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
                rows = await self._plane.save(
                    pending.handle, keys=keys, directory=tree.rows, link=False
                )
                published = await self._store.commit(
                    tree, pending.cut, rows=rows, prefixes=pending.prefixes
                )
        except BaseException:
            await self._store.abandon(tree)
            raise
        finally:
            pending.handle.close()
        board.world.perhaps("checkpoint.published")
        self._became_durable(pending)
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

    def _became_durable(self, pending: _Pending) -> None:
        board, cut = self._board, pending.cut
        board.saved(at=pending.at, sealed=pending.unsaved, prefixes=pending.prefixes)
        board.anchor = Anchor(
            kind=AnchorKind.CHECKPOINT, version=cut.trainer_version, history=cut.history
        )
        board.state.durable(cut.trainer_version)
        board.parent = cut.sequence
        self._pending = None

    def _due(self, version: int) -> bool:
        period = self._settings.save_period
        return period is not None and version % period == 0

    def _overdue(self) -> bool:
        """More would have to be replayed, or kept for it, than the recipe allows."""
        board, settings = self._board, self._settings
        assert settings.save_period is not None
        applied = board.state.version - board.anchor.version
        bound = min(settings.save_period, settings.max_replay_steps)
        if applied >= bound:
            return True
        return applied_bytes(board) >= settings.applied_bytes_max


def applied_bytes(board: Board) -> int:
    """Bytes of token columns that APPLIED groups keep in the plane."""
    receipts = (
        receipt
        for group in board.state.ledger.groups.values()
        if group.state is GroupState.APPLIED
        for receipt in group.receipts()
    )
    return sum(4 * r.prompt_tokens + BYTES_PER_TOKEN * r.response_tokens for r in receipts)
