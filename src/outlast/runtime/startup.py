"""Start of a life: lock, plan, verify and load read-only, then adopt (DESIGN 5, 12).

Until `Life.adopt` the disk is as it was found (P4, A6): a failure before it costs nothing, a
failure after it costs an incarnation number. May import: `durable`, `model`, `runtime.board`,
`runtime.store`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from outlast.durable import lineage, lock, names
from outlast.durable.anchors import write_bootstrap
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cutcodec import LoadedCut
from outlast.durable.files import make_directories
from outlast.durable.inspection import CutReader
from outlast.durable.listing import read_run
from outlast.durable.manifest import (
    FORMAT,
    BootstrapRecord,
    RunListing,
    encode,
)
from outlast.durable.publish import replace_file
from outlast.durable.restore import Plan, Resume, plan_restore
from outlast.durable.snapshots import Publisher
from outlast.errors import DiskError, DiskFull, Fenced, InvariantError, OutlastError
from outlast.model.cut import GENESIS, Anchor, AnchorKind
from outlast.model.duties import Duties
from outlast.model.groups import AttemptState
from outlast.model.ids import Incarnation, TrainerVersion
from outlast.model.state import RecoveryState
from outlast.ports import DataPlane
from outlast.runtime.board import Board
from outlast.runtime.prefixes import PrefixBook
from outlast.runtime.settings import RunSettings
from outlast.runtime.store import RunStore, StorePlace
from outlast.telemetry import events
from outlast.telemetry.bus import Bus
from outlast.world import World

BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS)
HEARTBEAT_S = 5.0


async def begin(*, world: World, bus: Bus, place: StorePlace, settings: RunSettings) -> Life:
    """Lock the run directory and decide how to start. Changes nothing but the lock.

    Raises the refusals of `plan_restore`, LockHeld, and DiskError.
    """
    began = world.clock.monotonic()
    files, run_dir = place.files, place.run_dir
    reader = CutReader(files, run_dir)
    before = await world.offload(read_run, files, run_dir, verify="names")
    if before.run is None:  # not a run yet: refuse a stranger's directory before touching it
        _plan(before, settings, reader=reader)
    await world.offload(make_directories, files, run_dir)
    held = await world.offload(
        lock.acquire, files, run_dir, world=world, take_over=settings.take_over
    )
    try:
        listing = await world.offload(read_run, files, run_dir, verify="manifest")
        plan = await world.offload(_plan, listing, settings, reader=reader)
    except BaseException:
        held.release()
        raise
    life = Life(world=world, bus=bus, place=place, settings=settings, held=held)
    loaded = reader.loaded(plan.cut) if isinstance(plan, Resume) else None
    life.found(listing, plan, loaded=loaded, began=began)
    return life


def _plan(listing: RunListing, settings: RunSettings, *, reader: CutReader) -> Plan:
    return plan_restore(
        listing,
        mode=settings.restore_mode,
        fingerprint=settings.fingerprint,
        inspect=reader.inspector,
        fresh=settings.fresh,
        max_replay_steps=sys.maxsize,
    )


class Life:
    """One incarnation's hold on the run directory."""

    def __init__(
        self,
        *,
        world: World,
        bus: Bus,
        place: StorePlace,
        settings: RunSettings,
        held: lock.RunLock,
    ) -> None:
        self._world = world
        self._bus = bus
        self._place = place
        self._settings = settings
        self._held = held
        self._board: Board | None = None
        self._store: RunStore | None = None
        self._log: ConsumptionLog | None = None
        self._fence: lineage.IncarnationFence | None = None

    def found(
        self, listing: RunListing, plan: Plan, *, loaded: LoadedCut | None, began: float
    ) -> None:
        """What the start decided; called once by `begin`."""
        self._listing, self._plan, self._loaded, self._began = listing, plan, loaded, began
        self.incarnation: Incarnation = lineage.next_incarnation(listing)

    # ---------------------------------------------------------------------- before adoption

    def finished(self, max_steps: int) -> bool:
        """Whether durable trainer state is at the target already."""
        if not isinstance(self._plan, Resume) or self._plan.steps_to_replay:
            return False
        return self.restored_version >= max_steps

    @property
    def restored_version(self) -> TrainerVersion:
        if self._loaded is None:
            return TrainerVersion(0)
        return self._loaded.manifest.trainer_version

    @property
    def restored_name(self) -> str | None:
        """Live name of the restored cut."""
        return self._plan.cut.path.name if isinstance(self._plan, Resume) else None

    @property
    def trainer_directory(self) -> Path | None:
        """Where the trainer loads from; None for the initial model."""
        if not isinstance(self._plan, Resume) or self._plan.anchor_tree is None:
            return None
        return Path(self._place.run_dir / self._plan.anchor_tree.path / names.TRAINER)

    async def load_rows(self, plane: DataPlane) -> None:
        """Fill the plane with exactly the rows that the restored cut names."""
        self._world.perhaps("start.planned")
        if self._loaded is not None:
            await plane.load(Path(self._loaded.rows), self._loaded.cut.row_keys)
        self._world.perhaps("start.loaded")

    # ----------------------------------------------------------------------------- adoption

    async def adopt(self) -> None:
        """Become the owner: from here on the run has a new incarnation."""
        world, place, settings = self._world, self._place, self._settings
        restored = self._loaded.manifest if self._loaded else None
        adoption = await world.offload(
            lineage.adopt,
            place.files,
            place.run_dir,
            listing=self._listing,
            restored=restored,
            world=world,
        )
        self._fence = adoption.fence
        world.perhaps("start.adopted")
        await world.offload(self._held.beat, adoption.record.number)
        self._next_sequence = adoption.record.first_sequence
        self._log = ConsumptionLog(
            place.files,
            place.paths.consumption,
            incarnation=adoption.record.number,
            fence=adoption.fence,
        )
        publisher = Publisher(
            place.files,
            place.run_dir,
            run=adoption.run.run,
            incarnation=adoption.record.number,
            fence=adoption.fence,
            log=self._log,
            world=world,
        )
        self._store = RunStore(
            world,
            self._bus,
            publisher=publisher,
            retention=settings.retention,
            fingerprint=encode(settings.fingerprint),
            recipe=settings.recipe_text.encode(),
            duties=self._duties,
        )
        for warning in await world.offload(publisher.sweep):
            self._bus.emit(events.Warned(message=warning))
        await world.offload(self._write_identity)
        world.perhaps("start.swept")
        self._bus.emit(
            events.RunStarted(
                run=adoption.run.run,
                incarnation=adoption.record.number,
                run_dir=str(place.run_dir),
                recipe=settings.description,
                steps_target=settings.train.max_steps,
            )
        )

    def _write_identity(self) -> None:
        """recipe.yaml at every adoption, the bootstrap anchor at the first."""
        files, settings = self._place.files, self._settings
        recipe = self._place.run_dir / names.RECIPE
        replace_file(files, recipe, data=settings.recipe_text.encode())
        if self._listing.bootstrap is None:
            identities = settings.fingerprint.identities
            record = BootstrapRecord(
                format=FORMAT,
                model=identities.model,
                tokenizer=identities.tokenizer,
                fingerprint=settings.fingerprint.digest,
            )
            write_bootstrap(files, self._place.run_dir, record=record)

    # ------------------------------------------------------------------------ after adoption

    @property
    def store(self) -> RunStore:
        if self._store is None:
            raise InvariantError("the store is used before adoption")
        return self._store

    @property
    def board(self) -> Board:
        if self._board is None:
            raise InvariantError("the board is used before it is made")
        return self._board

    def make_board(self) -> Board:
        """The recovery state, restored or new, on a fresh board."""
        assert self._log is not None
        settings, sampler = self._settings, self._settings.sampler()
        anchor, parent = BOOTSTRAP, None
        if self._loaded is None or not isinstance(self._plan, Resume):
            state = RecoveryState(
                settings.plan, sampler=sampler, journal=self._log, incarnation=self.incarnation
            )
        else:
            anchor, parent = self._plan.anchor, self._loaded.cut.sequence
            state = RecoveryState.restored(
                settings.plan,
                sampler=sampler,
                journal=self._log,
                incarnation=self.incarnation,
                cut=self._loaded.cut,
                anchor=anchor,
                abrupt=self._abrupt(),
            )
        self._board = Board(
            world=self._world,
            bus=self._bus,
            state=state,
            anchor=anchor,
            parent=parent,
            next_sequence=self._next_sequence,
            prefixes=PrefixBook(self._loaded.prefixes if self._loaded else ()),
        )
        return self._board

    def _abrupt(self) -> bool:
        """Whether the life before this one left no end record."""
        newest = max((r.number for r in self._listing.incarnations), default=0)
        return newest not in {end.number for end in self._listing.ends}

    def report(self, board: Board) -> None:
        """Emit the restore report (nothing for a fresh start)."""
        if self._loaded is None or not isinstance(self._plan, Resume):
            return
        cut, plan, now = self._loaded.cut, self._plan, self._world.clock
        live = [group for group in cut.groups if group.holds_permit]
        receipts = [receipt for group in live for receipt in group.receipts()]
        tokens = sum(receipt.response_tokens for receipt in receipts)
        prefix_tokens = sum(prefix.tokens for prefix in cut.prefixes)
        missing = [s for group in live for s in group.siblings if not s.sealed]
        flying = [s for s in missing if s.attempt.state is AttemptState.DISPATCHED]
        self._bus.emit(
            events.Restored(
                anchor=str(plan.anchor),
                snapshot=plan.cut.path.name,
                sequence=cut.sequence,
                age_s=max(0.0, now.wall() - plan.manifest.created),
                trainer_version=board.state.version,
                steps_to_replay=len(board.state.steps.to_replay),  # a cut may be of mid-replay
                groups_reused=sum(1 for group in live if group.all_sealed),
                siblings_reused=len(receipts),
                tokens_reused=tokens,
                prefix_tokens_reused=prefix_tokens,
                attempts_superseded=len(flying),
                siblings_redispatched=len(missing),
                rejected=tuple((r.path.name, f"{r.why}: {r.reason}") for r in plan.rejected),
                load_s=now.monotonic() - self._began,
                estimated_saved_s=(tokens + prefix_tokens) / cut.tokens_per_s
                if cut.tokens_per_s
                else 0.0,
            )
        )

    async def heartbeat(self) -> None:
        """Keep the lock's heartbeat fresh until the life ends. Raises Fenced."""
        while await self.board.sleep(HEARTBEAT_S):
            try:
                await self._world.offload(self._beat)
            except DiskFull as error:  # the flock itself needs no space
                self._bus.emit(events.Warned(message=f"the lock's heartbeat is late: {error}"))

    def _beat(self) -> None:
        """The lock belongs to the newest life: a replaced one must not write its name there."""
        if self._fence is not None:
            self._fence.check()
        self._held.beat()

    async def failed(self, error: BaseException) -> None:
        """Record the end by a failure. Where a newer life has the run, that is the cause whatever
        was seen of it: then raises Fenced, and nothing is written."""
        try:
            if self._fence is not None:
                await self._world.offload(self._fence.check)
        except Fenced as fenced:
            raise fenced from error
        except DiskError:  # the failure that is reported is the first one
            return
        if isinstance(error, OutlastError):
            await self.ended(type(error).__name__)

    async def ended(self, reason: str) -> None:
        """Record an orderly end. A crash is recognised by the absence of this record."""
        board = self._board
        await self._world.offload(
            lineage.write_end,
            self._place.files,
            self._place.run_dir,
            number=self.incarnation,
            reason=reason,
            last_cut=board.parent if board is not None else None,
            ended=self._world.clock.wall(),
        )

    async def close(self) -> None:
        """Give log and lock back."""
        if self._log is not None:
            await self._world.offload(self._log.close)
        self._held.release()

    def _duties(self) -> Duties | None:
        return self._board.state.duties if self._board is not None else None
