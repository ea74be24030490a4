"""What every data plane shares: the inventory of acknowledged rows, and their segments.

Keeps P1 (an acknowledged row stays readable whatever the disk does) and S6 (a frozen handle pins
what it names: rows released meanwhile stay in their segments until it is closed). Rows live in this
process, or in a `LiveRows` beside it; then they leave its memory once a synced segment holds them.
State changes only in synchronous stretches on the event loop; disk work runs through `offload`.
May import: `ports`, `durable`, `world`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np

from outlast.durable.files import Files, make_directory
from outlast.durable.segments import Held, SegmentStore
from outlast.errors import DiskError, InvariantError
from outlast.model.ids import AttemptKey, Incarnation
from outlast.ports import PlaneHandle, SavedFile
from outlast.rows import Row, row_digest
from outlast.world import Offload


class LiveRows(Protocol):
    """Where rows are kept for whoever trains on them, beside the segments that make them safe."""

    async def store(self, rows: Mapping[AttemptKey, Held], /) -> None:
        """Make `rows` (all resident) readable. Nothing may happen between the end of this call and
        their acknowledgement, which it follows synchronously."""
        ...

    async def fetch(self, wanted: Mapping[AttemptKey, Held], /) -> dict[AttemptKey, Row]:
        """The rows of `wanted`, each with its digest."""
        ...

    async def drop(self, keys: Sequence[AttemptKey], /) -> None:
        """Forget rows; unknown keys are ignored."""
        ...

    async def close(self) -> None: ...


class InventoryHandle:
    """The inventory at one instant, made without copying it.

    Rows acknowledged later carry a later tick; rows released since are kept aside by the plane.
    """

    def __init__(self, plane: SegmentedPlane, *, tick: int) -> None:
        self._plane = plane
        self.tick = tick

    @cached_property
    def keys(self) -> frozenset[AttemptKey]:
        return self._plane.keys_at(self.tick)

    def close(self) -> None:
        self._plane.unpin(self)


class SegmentedPlane:
    """`DataPlane` over a `SegmentStore`. `live` None: the rows stay in this process's memory."""

    def __init__(
        self,
        files: Files,
        segments_dir: PurePosixPath,
        *,
        incarnation: Incarnation,
        offload: Offload,
        live: LiveRows | None = None,
    ) -> None:
        self._files = files
        self._store = SegmentStore(files, segments_dir, incarnation=incarnation)
        self._offload = offload
        self._live = live
        self._held: dict[AttemptKey, Held] = {}
        self._kept: dict[AttemptKey, Held] = {}
        """Released while a handle was open; it may still save them."""
        self._ticks: dict[AttemptKey, int] = {}
        """When each held or kept row was acknowledged."""
        self._tick = 0
        self._arriving: set[AttemptKey] = set()
        self._handles: set[InventoryHandle] = set()
        self._released: list[AttemptKey] = []
        """Keys the store still places, to be forgotten once no handle is open."""

    # ------------------------------------------------------------------------- rows

    async def put(self, rows: Sequence[Row], /) -> tuple[str, ...]:
        keys = [row.key for row in rows]
        self._expect_new(keys)
        self._arriving.update(keys)
        acknowledged = False
        try:
            held = await self._offload(_prepare, rows)
            await self._offload(self._store.append, held)
            arrived = dict(zip(keys, held, strict=True))
            if self._live is not None and arrived:
                await self._live.store(arrived)
            self._acknowledge(arrived)
            acknowledged = True
        finally:
            self._arriving.difference_update(keys)
            if not acknowledged:  # the append may still happen in its thread; forget it later
                self._released += keys
        return tuple(item.digest for item in held)

    def _acknowledge(self, rows: Mapping[AttemptKey, Held]) -> None:
        self._tick += 1
        self._held.update(rows)
        self._ticks.update(dict.fromkeys(rows, self._tick))

    def _expect_new(self, keys: Sequence[AttemptKey]) -> None:
        seen: set[AttemptKey] = set()
        for key in keys:
            if key in self._held or key in self._arriving or key in seen:
                raise InvariantError(f"row {key} is put twice; an attempt seals once")
            seen.add(key)

    async def get(self, keys: Sequence[AttemptKey], /) -> tuple[Row, ...]:
        missing = [str(key) for key in keys if key not in self._held]
        if missing:
            raise InvariantError(
                f"get of {len(missing)} rows that the plane does not hold, first {missing[0]}"
            )
        held = [(key, self._held[key]) for key in keys]
        away = {key: item for key, item in held if item.row is None}
        found = await self._fetch(away) if away else {}
        return tuple(found[key] if item.row is None else item.row for key, item in held)

    async def _fetch(self, wanted: Mapping[AttemptKey, Held]) -> Mapping[AttemptKey, Row]:
        """Rows that are not in this process's memory, verified."""
        if self._live is None:
            return await self._offload(self._store.read_all, list(wanted))
        return await self._live.fetch(wanted)

    async def release(self, keys: Sequence[AttemptKey], /) -> None:
        for key in keys:
            held = self._held.pop(key, None)
            if held is None:
                continue
            self._released.append(key)
            if self._handles:
                self._kept[key] = held
            else:
                del self._ticks[key]
        await self._flush_released()

    async def _flush_released(self) -> None:
        if self._released and not self._handles:
            keys, self._released = self._released, []
            await self._offload(self._store.release, keys)
            if self._live is not None:
                await self._live.drop(keys)

    async def spill(self, keys: Iterable[AttemptKey], /) -> int:
        """Drop rows from memory that a finished, synced segment holds; returns bytes freed.

        `get` reads them back, verified.
        """
        resident = [k for k in keys if k in self._held and self._held[k].row is not None]
        settled = await self._offload(self._store.settled, resident)
        freed = 0
        for key in resident:
            held = self._held.get(key)
            if key in settled and held is not None and held.row is not None:
                freed += held.row.nbytes
                self._held[key] = Held(None, held.digest)
        return freed

    async def inventory(self) -> dict[AttemptKey, Held]:
        """Every row that is held or kept, resident: what a lost `LiveRows` is filled from."""
        held = {**self._kept, **self._held}
        away = [key for key, item in held.items() if item.row is None]
        found = await self._offload(self._store.read_all, away) if away else {}
        return {key: Held(found.get(key, item.row), item.digest) for key, item in held.items()}

    # ------------------------------------------------------------------------- handles

    def freeze(self) -> PlaneHandle:
        """O(1): nothing is copied, and what is released from now on is kept until `close`."""
        handle = InventoryHandle(self, tick=self._tick)
        self._handles.add(handle)
        return handle

    def keys_at(self, tick: int) -> frozenset[AttemptKey]:
        """Keys of the rows that were acknowledged by then, for a handle that is open."""
        return frozenset(key for key, born in self._ticks.items() if born <= tick)

    def unpin(self, handle: InventoryHandle) -> None:
        """Called by a handle that closes; what it pinned is released with the next call."""
        self._handles.discard(handle)
        if not self._handles:
            for key in self._kept:
                del self._ticks[key]
            self._kept.clear()

    def _frozen(self, keys: frozenset[AttemptKey], *, tick: int) -> dict[AttemptKey, Held]:
        """The rows of `keys` as they were at `tick`."""
        absent = [key for key in keys if self._ticks.get(key, tick + 1) > tick]
        if absent:
            raise InvariantError(
                f"S6: the cut names {len(absent)} rows that the frozen inventory lacks, "
                f"first {min(absent)}"
            )
        return {key: self._held.get(key) or self._kept[key] for key in keys}

    # ------------------------------------------------------------------------- saving, loading

    async def save(
        self, handle: PlaneHandle, *, keys: frozenset[AttemptKey], directory: Path, link: bool
    ) -> tuple[SavedFile, ...]:
        wanted = self._wanted(handle, keys, directory=directory)
        try:
            saved = await self._offload(self._save, wanted, PurePosixPath(directory), link=link)
        except DiskError:
            await self._take_back()
            raise
        if self._live is not None:
            await self.spill(list(self._held))
        return saved

    def _wanted(
        self, handle: PlaneHandle, keys: frozenset[AttemptKey], *, directory: Path
    ) -> dict[AttemptKey, Held]:
        if not isinstance(handle, InventoryHandle) or handle not in self._handles:
            raise InvariantError(f"save into {directory} from a handle that is closed or foreign")
        return self._frozen(keys, tick=handle.tick)

    def _save(
        self, wanted: Mapping[AttemptKey, Held], directory: PurePosixPath, *, link: bool
    ) -> tuple[SavedFile, ...]:
        make_directory(self._files, directory)
        entries = self._store.save(wanted, directory, link=link)
        return tuple(SavedFile(name=e.name, size=e.size, sha256=e.sha256) for e in entries)

    async def _take_back(self) -> None:
        """A failing disk may have taken the segment under rows that had left memory."""
        if self._live is None:
            return
        bare = {
            key: held
            for key, held in self._held.items()
            if held.row is None and self._store.place(key) is None
        }
        found = await self._live.fetch(bare) if bare else {}
        for key, row in found.items():
            if key in self._held:
                self._held[key] = Held(row, bare[key].digest)

    async def load(self, directory: Path, keys: frozenset[AttemptKey], /) -> None:
        self._expect_empty(directory)
        rows = await self._offload(self._store.load, PurePosixPath(directory), keys)
        if self._live is not None and rows:
            await self._live.store(rows)
        self._acknowledge(rows)

    def _expect_empty(self, directory: Path) -> None:
        if self._held or self._arriving:
            raise InvariantError(f"load of {directory} into a plane that holds rows already")

    async def adopt(self) -> None:
        """Rebuild ``segments/`` now rather than at the first put. Only after adoption (A6)."""
        await self._offload(self._store.adopt)

    async def close(self) -> None:
        if self._live is not None:
            await self._live.close()
        await self._offload(self._store.close)


def _prepare(rows: Sequence[Row]) -> list[Held]:
    """Rows as they will read back (reward rounded to its stored float32), with digests."""
    stored = (_stored(row) for row in rows)
    return [Held(row, row_digest(row)) for row in stored]


def _stored(row: Row) -> Row:
    reward = float(np.float32(row.reward))
    return row if reward == row.reward else replace(row, reward=reward)
