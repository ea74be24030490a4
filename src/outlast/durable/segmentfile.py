"""One segment file being written, and the index that makes a directory of segments an inventory.

``index.json.zst`` names, for every saved row, its segment, batch, row and content digest. Keeps A1
(rows are compared with their digest when read) and S10 (strict decoding; a file or row that the
index does not name is refused). May import: `files`, `manifest`, `rowcodec`, `rows`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from outlast.durable.encoding import encode_array, encode_object
from outlast.durable.files import Bytes, Files, Writer
from outlast.durable.manifest import FileEntry, decode, require_format
from outlast.durable.native import is_native, refuse_native
from outlast.durable.packing import pack, unpack
from outlast.durable.rowcodec import (
    END_OF_STREAM,
    HEADER,
    BatchSpan,
    decode_batch,
    decode_segment,
    encode_rows,
)
from outlast.errors import CorruptData, DiskError, InvariantError
from outlast.model.ids import AttemptKey
from outlast.rows import Row, row_digest

INDEX = "index.json.zst"


class SegmentFile:
    """A segment from creation to its last live row. `live` maps keys to bytes of token columns."""

    def __init__(self, files: Files, path: PurePosixPath) -> None:
        self.path = path
        self.size = 0
        self.sha256: str | None = None
        """Set when finished and synced; the segment is never written again."""
        self.spans: list[BatchSpan] = []
        self.row_bytes = 0
        self.live: dict[AttemptKey, int] = {}
        self._files = files
        self._digest = hashlib.sha256()
        self._writer: Writer | None = None

    @classmethod
    def finished(
        cls, files: Files, path: PurePosixPath, *, entry: FileEntry, spans: Sequence[BatchSpan]
    ) -> SegmentFile:
        """A segment that was read back."""
        segment = cls(files, path)
        segment.size, segment.sha256, segment.spans = entry.size, entry.sha256, list(spans)
        return segment

    @property
    def name(self) -> str:
        return self.path.name

    def start(self) -> None:
        """Create the file with its schema."""
        self._writer = self._files.create(self.path)
        self._write(HEADER)

    def append(self, rows: Sequence[Row]) -> int:
        """Write one record batch; returns its number within the segment."""
        message = encode_rows(rows)
        self.spans.append(BatchSpan(offset=self.size, length=message.nbytes, rows=len(rows)))
        self._write(message)
        self.row_bytes += sum(row.nbytes for row in rows)
        return len(self.spans) - 1

    def finish(self) -> None:
        """Write the end mark, sync and close. Only now may the segment be linked."""
        writer = self._write(END_OF_STREAM)
        writer.fsync()
        self.close()
        self.sha256 = self._digest.hexdigest()

    def _write(self, data: Bytes) -> Writer:
        if self._writer is None:
            raise InvariantError(f"append to {self.path}, which is finished; it may be linked")
        self._writer.write(data)
        self._digest.update(data)
        self.size += len(data)
        return self._writer

    def read_rows(self, batch: int, wanted: Mapping[AttemptKey, Place]) -> dict[AttemptKey, Row]:
        """The rows of `wanted`, which stand in `batch`, verified. Raises CorruptData, DiskError."""
        span = self.spans[batch]
        message = self._files.read_at(self.path, offset=span.offset, length=span.length)
        rows = decode_batch(message, where=str(self.path))
        found = {key: rows[place.row] for key, place in wanted.items()}
        for key, place in wanted.items():
            if found[key].key != key or row_digest(found[key]) != place.digest:
                raise CorruptData(
                    f"{self.path}: batch {batch} row {place.row} is not row {key} "
                    f"with digest {place.digest[:12]}; restart from the last snapshot"
                )
        return found

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def entry(self) -> FileEntry:
        """Name, size and digest, as carried into a snapshot."""
        if self.sha256 is None:
            raise InvariantError(f"segment {self.path} is saved before it is finished and synced")
        return FileEntry(name=self.name, size=self.size, sha256=self.sha256)


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class IndexEntry(_Record, frozen=True, kw_only=True):
    """One saved row."""

    key: AttemptKey
    segment: str
    batch: int
    row: int
    digest: str


class SegmentIndex(_Record, frozen=True, kw_only=True):
    """index.json.zst: exactly what a directory of segments holds for its cut."""

    format: int
    private: bool
    """True when no file shares its inode with another cut; adoption then must not link either."""
    segments: tuple[FileEntry, ...]
    rows: tuple[IndexEntry, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a live row stands: row `row` of batch `batch` of `segment`."""

    segment: str
    batch: int
    row: int
    nbytes: int
    digest: str


def index_entry(key: AttemptKey, place: Place) -> IndexEntry:
    """How an inventory names the row that stands at `place`."""
    return IndexEntry(
        key=key, segment=place.segment, batch=place.batch, row=place.row, digest=place.digest
    )


def encode_index(index: SegmentIndex) -> bytes:
    """Packed JSON of an index, encoded in pieces."""
    return pack(encode_object(index, ready={"rows": encode_array(index.rows)}))


@dataclass(frozen=True, slots=True)
class SavedRows:
    """What a directory of segments gave back."""

    index: SegmentIndex
    segments: tuple[SegmentFile, ...]
    rows: dict[AttemptKey, Row]


def read_saved(files: Files, directory: PurePosixPath) -> SavedRows:
    """Read and verify a directory that `SegmentStore.save` wrote.

    Raises CorruptData for any mismatch, UnsupportedFormat for another format or a foreign
    checkpoint, DiskError.
    """
    where = str(directory / INDEX)
    try:
        data = unpack(files.read(directory / INDEX), where=where)
        index = decode(data, SegmentIndex, where=where)
    except FileNotFoundError as error:
        if is_native(files, directory):
            raise refuse_native(directory) from error
        raise CorruptData(f"{where} is missing") from error
    require_format(index.format, where=where)
    by_segment: dict[str, list[IndexEntry]] = {entry.name: [] for entry in index.segments}
    for entry in index.rows:
        if entry.segment not in by_segment:
            raise CorruptData(f"{where}: row {entry.key} names unlisted segment {entry.segment}")
        by_segment[entry.segment].append(entry)
    segments: list[SegmentFile] = []
    rows: dict[AttemptKey, Row] = {}
    for listed in index.segments:
        path = directory / listed.name
        segments.append(
            _read_segment(files, path, listed=listed, wanted=by_segment[listed.name], into=rows)
        )
    if len(rows) != len(index.rows):
        raise CorruptData(f"{where}: a row key stands twice")
    return SavedRows(index=index, segments=tuple(segments), rows=rows)


def _read_segment(
    files: Files,
    path: PurePosixPath,
    *,
    listed: FileEntry,
    wanted: Sequence[IndexEntry],
    into: dict[AttemptKey, Row],
) -> SegmentFile:
    try:
        data = files.read(path)
    except FileNotFoundError as error:
        raise CorruptData(f"{path} is missing") from error
    if len(data) != listed.size:  # the caller verified the digest; here each row is compared
        raise CorruptData(f"{path}: {len(data)} bytes, expected {listed.size}")
    batches = decode_segment(data, where=str(path))
    segment = SegmentFile.finished(files, path, entry=listed, spans=[span for span, _ in batches])
    segment.row_bytes = sum(row.nbytes for _, rows in batches for row in rows)
    for entry in wanted:
        try:
            row = batches[entry.batch][1][entry.row]
        except IndexError:
            row = None
        if row is None or row.key != entry.key or row_digest(row) != entry.digest:
            raise CorruptData(
                f"{path}: batch {entry.batch} row {entry.row} is not row {entry.key} "
                f"with digest {entry.digest[:12]}"
            )
        into[entry.key] = row
    return segment


def inventory_difference(
    directory: PurePosixPath, found: Iterable[AttemptKey], *, wanted: frozenset[AttemptKey]
) -> str:
    """How the rows that were saved differ from those that a cut names, for a message."""
    held = frozenset(found)
    missing, extra = sorted(wanted - held), sorted(held - wanted)
    return (
        f"{directory} holds {len(held)} rows, the cut names {len(wanted)}: "
        f"missing {[str(k) for k in missing[:3]]}, unexpected {[str(k) for k in extra[:3]]}"
    )


@contextlib.contextmanager
def standing(directory: PurePosixPath) -> Iterator[None]:
    """What we wrote has gone: a newer incarnation sweeps, and the next fencing check will tell."""
    try:
        yield
    except FileNotFoundError as error:
        raise DiskError(
            f"{directory}: {error}; has another controller taken this run over?"
        ) from error
