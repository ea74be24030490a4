"""Row segments: append-only Arrow IPC stream files that snapshots share by hard link.

A segment is open (being written), finished (synced, digested once, never written again) or gone.
Only finished segments are linked into a snapshot, their digest carried along. A segment whose
write or fsync failed is dropped and its live rows are appended again elsewhere. Names carry the
incarnation and a counter and are never reused (A5); what was restored gets new ones, so that a
controller removes its own and its predecessors' files, and a replaced one cannot hurt a newer one.
Segments without live rows go away (S12).
Nothing is written before the first append or save, so loading stays read-only (A6).
One thread at a time: every public method takes the lock. May import: `files`, `rowcodec`, `rows`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import NamedTuple

from outlast.durable import names
from outlast.durable.files import Files, LinkRefused, make_directory, write_file
from outlast.durable.manifest import FileEntry, sha256
from outlast.durable.segmentfile import (
    INDEX,
    IndexEntry,
    Place,
    SavedRows,
    SegmentFile,
    SegmentIndex,
    encode_index,
    index_entry,
    inventory_difference,
    read_saved,
    standing,
)
from outlast.errors import CorruptData, DiskError, InvariantError
from outlast.model.ids import AttemptKey, Incarnation
from outlast.rows import Row

BATCH_ROWS = 256
"""Most rows in one record batch; a row is read back by reading its batch."""
SEGMENT_BYTES_MAX = 256 << 20
"""An open segment that has grown to this is finished early."""
REWRITE_BYTES_MAX = 32 << 20
"""Live bytes moved out of mostly dead segments per save."""
REWRITE_BELOW = 4
"""A segment is rewritten when less than one part in this many is live."""


class Held(NamedTuple):
    """A row as its owner knows it; `row` is None once it left memory for its segment."""

    row: Row | None
    digest: str


class SegmentStore:
    """The segments of one incarnation in ``segments/``."""

    def __init__(self, files: Files, directory: PurePosixPath, *, incarnation: Incarnation) -> None:
        self._files = files
        self._directory = directory
        self._incarnation = incarnation
        self._lock = threading.Lock()
        self._counter = 0
        self._segments: dict[str, SegmentFile] = {}
        self._open: SegmentFile | None = None
        self._places: dict[AttemptKey, Place] = {}
        self._restored: dict[str, PurePosixPath] = {}
        self._adopted = False
        self._stopped: DiskError | None = None

    @property
    def stopped(self) -> DiskError | None:
        """Why the writer stopped appending, until a save gets through; None while it writes."""
        return self._stopped

    def place(self, key: AttemptKey) -> Place | None:
        """Where `key` stands; None while it is only in memory."""
        return self._places.get(key)

    # ------------------------------------------------------------------------- appending

    def append(self, rows: Sequence[Held]) -> None:
        """Write `rows` to the open segment. A disk failure stops the writer and is not raised:
        the rows stay in their owner's memory and the next save places them."""
        with self._lock:
            if self._stopped is not None:
                return
            try:
                with standing(self._directory):
                    self._ready()
                    self._append(rows)
            except DiskError as error:
                self._stopped = error

    def _append(self, rows: Iterable[Held]) -> None:
        remaining = iter(rows)
        while chunk := list(islice(remaining, BATCH_ROWS)):
            if self._open is not None and self._open.size >= SEGMENT_BYTES_MAX:
                self._roll()
            segment = self._open or self._start()
            self._write_batch(segment, chunk)

    def _start(self) -> SegmentFile:
        segment = SegmentFile(self._files, self._directory / self._next_name())
        self._segments[segment.name] = segment
        self._open = segment
        with self._failing(segment):
            segment.start()
        return segment

    def _next_name(self) -> str:
        self._counter += 1
        return names.segment(self._incarnation, self._counter)

    def _write_batch(self, segment: SegmentFile, chunk: Sequence[Held]) -> None:
        rows = [_resident(held) for held in chunk]
        with self._failing(segment):
            batch = segment.append(rows)
        for number, (row, held) in enumerate(zip(rows, chunk, strict=True)):
            place = Place(segment.name, batch, number, row.nbytes, held.digest)
            self._move(row.key, place)

    def _move(self, key: AttemptKey, place: Place) -> None:
        self._forget(key)
        self._places[key] = place
        segment = self._segments[place.segment]
        segment.live[key] = place.nbytes

    def _forget(self, key: AttemptKey) -> None:
        place = self._places.pop(key, None)
        if place is not None:
            self._segments[place.segment].live.pop(key, None)

    def _roll(self) -> None:
        """Finish, sync and digest the open segment; the next append opens a new one."""
        segment = self._open
        if segment is not None:
            with self._failing(segment):
                segment.finish()
            self._open = None

    @contextlib.contextmanager
    def _failing(self, segment: SegmentFile) -> Iterator[None]:
        """A failure makes a segment worthless: its bytes may count as clean, unsynced."""
        try:
            yield
        except BaseException:
            for key in list(segment.live):
                self._forget(key)
            if self._open is segment:
                self._open = None
            self._drop(segment)
            raise

    def _drop(self, segment: SegmentFile) -> None:
        """Remove a segment without live rows. Failing to is retried by the next collection."""
        with contextlib.suppress(DiskError):
            segment.close()
            with contextlib.suppress(FileNotFoundError):
                self._files.unlink(segment.path)
            del self._segments[segment.name]

    def _collect(self) -> None:
        for segment in list(self._segments.values()):
            if not segment.live and segment is not self._open:
                self._drop(segment)

    # ------------------------------------------------------------------------- releasing

    def release(self, keys: Iterable[AttemptKey]) -> None:
        """Forget rows nobody names any more; unknown keys are ignored."""
        with self._lock:
            for key in keys:
                self._forget(key)
            if self._adopted:
                self._collect()

    # ------------------------------------------------------------------------- reading back

    def settled(self, keys: Iterable[AttemptKey]) -> frozenset[AttemptKey]:
        """Those of `keys` that stand in a finished segment, so may leave memory."""
        with self._lock:
            placed = ((key, self._places.get(key)) for key in keys)
            return frozenset(
                key for key, at in placed if at and self._segments[at.segment].sha256 is not None
            )

    def read(self, key: AttemptKey) -> Row:
        """A row from its segment, verified. Raises CorruptData or DiskError."""
        return self.read_all([key])[key]

    def read_all(self, keys: Iterable[AttemptKey]) -> dict[AttemptKey, Row]:
        """Rows from their segments, verified; each batch is read once. Raises as `read`."""
        with self._lock:
            return self._read(keys)

    def _read(self, keys: Iterable[AttemptKey]) -> dict[AttemptKey, Row]:
        batches: dict[tuple[str, int], dict[AttemptKey, Place]] = {}
        for key in keys:
            place = self._places.get(key)
            if place is None:
                raise InvariantError(f"row {key} is in no segment; it cannot be read back")
            batches.setdefault((place.segment, place.batch), {})[key] = place
        rows: dict[AttemptKey, Row] = {}
        for (name, batch), wanted in batches.items():
            rows.update(self._segments[name].read_rows(batch, wanted))
        return rows

    # ------------------------------------------------------------------------- saving

    def save(
        self, wanted: Mapping[AttemptKey, Held], directory: PurePosixPath, *, link: bool
    ) -> tuple[FileEntry, ...]:
        """Put exactly the rows of `wanted` below `directory` (it exists), synced, with an index.

        Raises DiskFull or DiskError; then `directory` must be abandoned and the next save may try
        again. `link` False writes private copies from memory, sharing no inode with any snapshot.
        """
        with self._lock, standing(directory):
            self._stopped = None
            self._ready()
            if not link:
                return self._save_private(wanted, directory, linked={})
            try:
                self._append(wanted[key] for key in sorted(wanted) if key not in self._places)
                self._rewrite(wanted)
                self._roll()
            except DiskError as error:
                self._stopped = error
                raise
            self._collect()
            return self._save_linked(wanted, directory)

    def _save_linked(
        self, wanted: Mapping[AttemptKey, Held], directory: PurePosixPath
    ) -> tuple[FileEntry, ...]:
        linked: dict[str, FileEntry] = {}
        try:
            for name in sorted({self._places[key].segment for key in wanted}):
                segment = self._segments[name]
                self._files.link(segment.path, directory / name)
                linked[name] = segment.entry()
        except LinkRefused:
            return self._save_private(wanted, directory, linked=linked)
        rows = [index_entry(key, self._places[key]) for key in sorted(wanted)]
        return self._write_index(directory, rows, segments=linked, private=False)

    def _save_private(
        self,
        wanted: Mapping[AttemptKey, Held],
        directory: PurePosixPath,
        *,
        linked: Mapping[str, FileEntry],
    ) -> tuple[FileEntry, ...]:
        segments = dict(linked)
        rows = [index_entry(k, p) for k, p in self._places.items() if p.segment in linked]
        rows = [entry for entry in rows if entry.key in wanted]
        remaining = iter(sorted(wanted.keys() - {entry.key for entry in rows}))
        while keys := list(islice(remaining, BATCH_ROWS)):
            segment = SegmentFile(self._files, directory / self._next_name())
            chunk = self._fetch({key: wanted[key] for key in keys})
            try:
                segment.start()
                segment.append(chunk)
                segment.finish()
            finally:
                segment.close()
            segments[segment.name] = segment.entry()
            places = (
                (k, Place(segment.name, 0, i, 0, wanted[k].digest)) for i, k in enumerate(keys)
            )
            rows += [index_entry(key, place) for key, place in places]
        return self._write_index(
            directory, sorted(rows, key=lambda e: e.key), segments=segments, private=True
        )

    def _fetch(self, wanted: Mapping[AttemptKey, Held]) -> list[Row]:
        away = self._read(key for key, held in wanted.items() if held.row is None)
        return [away[key] if held.row is None else held.row for key, held in wanted.items()]

    def _write_index(
        self,
        directory: PurePosixPath,
        rows: Sequence[IndexEntry],
        *,
        segments: Mapping[str, FileEntry],
        private: bool,
    ) -> tuple[FileEntry, ...]:
        entries = tuple(segments[name] for name in sorted(segments))
        index = SegmentIndex(format=1, private=private, segments=entries, rows=tuple(rows))
        data = encode_index(index)
        write_file(self._files, directory / INDEX, data=data)
        self._files.fsync_dir(directory)
        return (*entries, FileEntry(name=INDEX, size=len(data), sha256=sha256(data)))

    def _rewrite(self, wanted: Mapping[AttemptKey, Held]) -> None:
        """Append the live rows of mostly dead segments again, up to a bound per save."""
        budget = REWRITE_BYTES_MAX
        for segment in list(self._segments.values()):
            live = sum(segment.live.values())
            sparse = segment.live and live * REWRITE_BELOW < segment.row_bytes
            if not sparse or live > budget:
                continue
            with contextlib.suppress(CorruptData):  # named when the snapshot holding it is read
                rows = [self._moved(key, wanted) for key in sorted(segment.live)]
                budget -= live
                if segment is self._open:
                    self._set_aside(segment, rows)
                else:
                    self._append(rows)

    def _set_aside(self, segment: SegmentFile, rows: Sequence[Held]) -> None:
        """A mostly dead open segment is never finished: its few live rows start the next one."""
        self._open = None
        with self._failing(segment):  # unfinished and no longer open, it must not keep a row
            self._append(rows)

    def _moved(self, key: AttemptKey, wanted: Mapping[AttemptKey, Held]) -> Held:
        held = wanted.get(key)
        row = held.row if held is not None and held.row is not None else self._read([key])[key]
        return Held(row, self._places[key].digest)

    # ------------------------------------------------------------------------- restoring

    def load(self, directory: PurePosixPath, keys: frozenset[AttemptKey]) -> dict[AttemptKey, Held]:
        """The rows saved below `directory`, every digest verified; changes nothing on disk.

        Raises CorruptData when the files or the inventory are not exactly what they must be.
        """
        with self._lock:
            if self._places or self._segments:
                raise InvariantError(f"load of {directory} into a store that holds rows already")
            saved = read_saved(self._files, directory)
            if saved.rows.keys() != keys:
                raise CorruptData(inventory_difference(directory, saved.rows.keys(), wanted=keys))
            self._adopted = False
            if not saved.index.private:
                self._take_over(saved)
            digests = {entry.key: entry.digest for entry in saved.index.rows}
            return {key: Held(row, digests[key]) for key, row in saved.rows.items()}

    def _take_over(self, saved: SavedRows) -> None:
        """Give what was loaded names of this incarnation: a replaced one may remove its own."""
        own: dict[str, str] = {}
        for segment in saved.segments:
            source = segment.path
            segment.path = self._directory / self._next_name()
            own[source.name] = segment.name
            self._segments[segment.name] = segment
            self._restored[segment.name] = source
        for entry in saved.index.rows:
            nbytes = saved.rows[entry.key].nbytes
            self._move(
                entry.key,
                Place(own[entry.segment], entry.batch, entry.row, nbytes, entry.digest),
            )

    def adopt(self) -> None:
        """Rebuild ``segments/`` as links of what was loaded and sweep the rest. Idempotent."""
        with self._lock:
            self._ready()

    def _ready(self) -> None:
        if self._adopted:
            return
        make_directory(self._files, self._directory)
        for name in self._files.list(self._directory):
            if names.segment_incarnation(name) <= self._incarnation:
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(self._directory / name)
        self._link_restored()
        self._adopted = True
        self._collect()

    def _link_restored(self) -> None:
        try:
            for name in sorted(self._segments):
                self._files.link(self._restored[name], self._directory / name)
        except LinkRefused:  # the rows are in memory: the next save writes them again
            for key in list(self._places):
                self._forget(key)

    def close(self) -> None:
        """Give the descriptor of the open segment back."""
        with self._lock:
            if self._open is not None:
                self._open.close()


def _resident(held: Held) -> Row:
    if held.row is None:
        raise InvariantError(f"a row with digest {held.digest[:12]} left memory without a place")
    return held.row
