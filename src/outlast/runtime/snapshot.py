"""Snapshot pump: a published cut at every attempt, without holding anybody up.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| the clock | published snapshots | the publishing lane | never blocks another loop |

Laws: A2, S6, L2, L3. The cut is one synchronous call; its self-check, its encoding and all disk
work happen afterwards on copies, off the event loop. May import: `ports`, `runtime.board`,
`runtime.interval`, `runtime.store`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.errors import DiskError, DiskFull
from outlast.model.cut import Cut
from outlast.model.ids import AttemptKey
from outlast.ports import DataPlane, PlaneHandle
from outlast.runtime.board import Board
from outlast.runtime.interval import Cadence
from outlast.runtime.prefixes import Frozen, prefix_refs
from outlast.runtime.store import RunStore
from outlast.telemetry import events
from outlast.telemetry.events import SkipReason


@dataclass(frozen=True, slots=True)
class _Taken:
    cut: Cut
    handle: PlaneHandle
    mutations: tuple[int, int]
    at: float
    hold_s: float
    unsaved: frozenset[AttemptKey]
    prefixes: Frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSettings:
    """`interval_s` None writes none. With `mtbf_s` it is only where the interval starts, which is
    chosen anew from the measured cost after each publication. Without `replay`, a snapshot needs a
    durable trainer checkpoint of its own step (anchor policy exact)."""

    interval_s: float | None
    failures_max: int
    replay: bool
    mtbf_s: float | None = None


class SnapshotPump:
    """One attempt per interval; failures are counted, invariants are fatal."""

    def __init__(
        self,
        board: Board,
        settings: SnapshotSettings,
        *,
        plane: DataPlane,
        store: RunStore,
    ) -> None:
        self._board = board
        self._settings = settings
        self._plane = plane
        self._store = store
        self._failures = 0
        self._published_mutations: tuple[int, int] | None = None
        self._cadence = Cadence(settings.interval_s, mtbf_s=settings.mtbf_s)

    async def run(self) -> None:
        """Attempt a snapshot at every multiple of the interval until the life ends."""
        interval = self._cadence.interval_s
        if interval is None:
            return
        clock = self._board.world.clock
        due = clock.monotonic() + interval
        while await self._board.sleep(due - clock.monotonic()):
            await self.attempt()
            interval = self._cadence.interval_s or interval
            missed = max(0.0, clock.monotonic() - due) // interval
            due += interval * (missed + 1)

    async def attempt(self, *, final: bool = False) -> bool:
        """Publish the state of this instant; False when there was a reason not to.

        Raises DiskError after `failures_max` failed saves in a row (at once when
        `final`), and InvariantError when the cut contradicts itself.
        """
        board = self._board
        reason = self._skip_reason()
        if reason is not None:
            board.bus.emit(events.SnapshotSkipped(reason=reason))
            return False
        async with board.publishing:
            taken = self._take()
            try:
                await self._publish(taken, final=final)
            except DiskFull as error:
                self._count(error, SkipReason.DISK_FULL, fatal=final)
                return False
            except DiskError as error:
                self._count(error, SkipReason.SAVE_FAILED, fatal=final)
                return False
            finally:
                taken.handle.close()
        self._failures = 0
        return True

    def _skip_reason(self) -> SkipReason | None:
        state, anchor = self._board.state, self._board.anchor
        if state.version != anchor.version and not self._settings.replay:
            return SkipReason.MISSING_TRAINER_ANCHOR
        if self._mutations() == self._published_mutations:
            return SkipReason.NO_MUTATIONS
        return None

    def _mutations(self) -> tuple[int, int]:
        """What a cut would show differs when this does; growing prefixes count too."""
        return self._board.state.mutations, self._board.prefix_tokens

    def _take(self) -> _Taken:
        """The cut: one synchronous section."""
        board = self._board
        began = board.world.clock.monotonic()
        prefixes = board.frozen_prefixes()
        cut = board.state.cut(
            sequence=board.take_sequence(),
            parent=board.parent,
            anchor=board.anchor,
            prefixes=prefix_refs(prefixes),
        )
        handle = self._plane.freeze()
        return _Taken(
            cut=cut,
            handle=handle,
            mutations=self._mutations(),
            at=began,
            hold_s=board.world.clock.monotonic() - began,
            unsaved=frozenset(board.sealed_since_cut),
            prefixes=prefixes,
        )

    async def _publish(self, taken: _Taken, *, final: bool) -> None:
        board, clock = self._board, self._board.world.clock
        board.world.perhaps("snapshot.cut")
        tree = await self._store.open_snapshot(taken.cut)
        try:
            rows = await self._plane.save(
                taken.handle, keys=taken.cut.row_keys, directory=tree.rows, link=True
            )
            saved_at = clock.monotonic()
            board.world.perhaps("snapshot.rows_saved")
            published = await self._store.commit(
                tree, taken.cut, rows=rows, prefixes=taken.prefixes
            )
        except BaseException:
            await self._store.abandon(tree)
            raise
        board.parent = taken.cut.sequence
        board.saved(at=taken.at, sealed=taken.unsaved, prefixes=taken.prefixes)
        self._published_mutations = taken.mutations
        board.bus.emit(
            events.SnapshotPublished(
                id=published.name,
                sequence=taken.cut.sequence,
                trainer_version=taken.cut.trainer_version,
                bytes_written=published.bytes_new,
                bytes_total=published.bytes_total,
                groups=len(taken.cut.groups),
                rows=len(taken.cut.row_keys),
                hold_s=taken.hold_s,
                save_s=saved_at - taken.at,
                commit_s=clock.monotonic() - saved_at,
                final=final,
            )
        )
        if self._cadence.measured(clock.monotonic() - taken.at):
            board.bus.emit(
                events.IntervalChosen(
                    interval_s=self._cadence.interval_s or 0.0, cost_s=self._cadence.cost_s
                )
            )

    def _count(self, error: DiskError, reason: SkipReason, *, fatal: bool) -> None:
        """A failed save leaves the previous snapshot standing; too many in a row stop the run."""
        self._board.bus.emit(events.SnapshotSkipped(reason=reason, detail=str(error)))
        if reason is SkipReason.DISK_FULL and not fatal:
            return
        self._failures += 1
        if not fatal and self._failures < self._settings.failures_max:
            return
        standing = self._store.last_published or "what the run started from"
        raise type(error)(
            f"{error}. {'The last snapshot' if fatal else f'{self._failures} snapshots in a row'} "
            f"could not be written; {standing} stands. Make room or mend the disk, then run the "
            "same command again"
        ) from error
