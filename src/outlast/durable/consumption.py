"""The consumption log: how every drawn prompt was settled, one append-only file per incarnation.

Frames of (length, crc32, JSON record). A cut names (incarnation, length, running sha256); what lies
beyond is void. Keeps S1 and S4 across lives: `sync` runs before the COMMITTED of the cut that names
the position, and the reader refuses a log that is shorter or other than the cut says.
`append` is synchronous and touches no disk. May import: `files`, `manifest`, `names`, `model`.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.files import Files, Writer, make_directory
from outlast.durable.manifest import sha256
from outlast.durable.publish import Fence
from outlast.errors import CorruptData, DiskError, InvariantError, UnsupportedFormat
from outlast.model.cut import LogPosition
from outlast.model.ids import Incarnation
from outlast.model.journal import JournalRecord

_FRAME = struct.Struct("<II")
FRAME_BYTES_MAX = 64 << 20
"""A longer frame is damage, not a record."""


_decoder: msgspec.json.Decoder[JournalRecord] = msgspec.json.Decoder(JournalRecord)


def _frame(record: JournalRecord) -> bytes:
    payload = msgspec.json.encode(record, order="deterministic")
    try:
        same = _decoder.decode(payload) == record
    except msgspec.ValidationError:
        same = False
    if not same:  # NaN has no JSON and would make the log unreadable
        raise InvariantError(f"{record} does not survive its encoding; are its floats finite?")
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


class ConsumptionLog:
    """The log of this incarnation. `append` belongs to the event loop, `sync` to any thread."""

    def __init__(
        self, files: Files, directory: PurePosixPath, *, incarnation: Incarnation, fence: Fence
    ) -> None:
        self._files = files
        self._directory = directory
        self._path = directory / names.consumption_log(incarnation)
        self._incarnation = incarnation
        self._fence = fence
        self._memory = threading.Lock()
        self._pending: list[bytes] = []
        self._length = 0
        self._digest = hashlib.sha256()
        self._disk = threading.Lock()
        self._synced = 0
        self._synced_digest = self._digest.hexdigest()
        self._writer: Writer | None = None
        self._damaged = False

    @property
    def position(self) -> LogPosition:
        """Everything appended so far, for the next cut."""
        with self._memory:
            return LogPosition(
                incarnation=self._incarnation, length=self._length, digest=self._digest.hexdigest()
            )

    def append(self, record: JournalRecord) -> None:
        """Add a record in memory. Raises InvariantError for one that JSON cannot carry."""
        data = _frame(record)
        with self._memory:
            self._pending.append(data)
            self._length += len(data)
            self._digest.update(data)

    def sync(self, length: int) -> None:
        """Make at least the first `length` bytes durable. Raises Fenced, DiskFull, DiskError.

        After a failure the file is not trusted again: the next sync writes a new one from its
        durable part and the records in memory, and renames it into place.
        """
        with self._disk:
            with self._memory:
                batch = list(self._pending)
                digest = self._digest.hexdigest()
            if length > self._synced + sum(map(len, batch)):
                raise InvariantError(f"{self._path}: sync to {length}, beyond what was appended")
            if length <= self._synced:
                return
            self._fence.check()
            try:
                self._write(b"".join(batch))
            except BaseException:
                self._damaged = True
                self._close_writer()
                raise
            with self._memory:
                del self._pending[: len(batch)]
            self._synced += sum(map(len, batch))
            self._synced_digest = digest

    def _write(self, data: bytes) -> None:
        if self._damaged:
            self._replace(data)
        elif self._writer is None:
            self._create(data)
        else:
            self._writer.write(data)
            self._writer.fsync()

    def _create(self, data: bytes) -> None:
        make_directory(self._files, self._directory)
        try:
            self._writer = self._files.create(self._path)
        except FileExistsError as error:
            raise InvariantError(f"{self._path} exists: incarnation numbers are reused") from error
        self._writer.write(data)
        self._writer.fsync()
        self._files.fsync_dir(self._directory)

    def _replace(self, data: bytes) -> None:
        prefix = b""
        if self._synced:
            prefix = self._files.read(self._path)[: self._synced]
            if sha256(prefix) != self._synced_digest:
                raise DiskError(f"{self._path} lost bytes that were synced; replace the disk")
        temporary = self._directory / f"tmp_{self._path.name}"
        make_directory(self._files, self._directory)
        with contextlib.suppress(FileNotFoundError):
            self._files.unlink(temporary)
        self._writer = self._files.create(temporary)
        self._writer.write(prefix + data)
        self._writer.fsync()
        self._files.rename(temporary, self._path)
        self._files.fsync_dir(self._directory)
        self._damaged = False

    def _close_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with contextlib.suppress(DiskError):
                writer.close()

    def close(self) -> None:
        """Give the descriptor back; records not synced are void, as the last cut says."""
        with self._disk:
            self._close_writer()
            self._damaged = True


# ------------------------------------------------------------------------------- reading


def read_log(
    files: Files, directory: PurePosixPath, *, position: LogPosition
) -> tuple[JournalRecord, ...]:
    """The records of one incarnation up to `position`.

    Raises CorruptData when the file is missing, shorter or other than the position says,
    UnsupportedFormat for a record this release does not know, DiskError for a failing disk.
    """
    path = directory / names.consumption_log(position.incarnation)
    data = _prefix(files, path, length=position.length)
    if sha256(data) != position.digest:
        raise CorruptData(
            f"{path}: the first {position.length} bytes have sha256 {sha256(data)[:12]}, "
            f"the cut says {position.digest[:12]}"
        )
    return tuple(_records(data, path))


def _prefix(files: Files, path: PurePosixPath, *, length: int) -> bytes:
    if length == 0:
        return b""
    try:
        data = files.read_at(path, offset=0, length=length)
    except FileNotFoundError as error:
        raise CorruptData(f"{path} is missing; the cut names {length} bytes of it") from error
    if len(data) < length:
        raise CorruptData(f"{path} has {len(data)} bytes; the cut names {length}")
    return data


def _records(data: bytes, path: PurePosixPath) -> Iterator[JournalRecord]:
    offset = 0
    while offset < len(data):
        start = offset + _FRAME.size
        length, crc = _FRAME.unpack(data[offset:start]) if start <= len(data) else (0, -1)
        payload = data[start : start + length]
        if len(payload) < length or length > FRAME_BYTES_MAX or zlib.crc32(payload) != crc:
            raise CorruptData(f"{path}: broken frame at byte {offset}")
        try:
            yield _decoder.decode(payload)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise UnsupportedFormat(
                f"{path}: the record at byte {offset} is intact but unknown: {error}"
            ) from error
        offset = start + length
