"""A checkpoint that a foreign store wrote of its rows, made into an inventory that can be trusted.

The store writes pickles, unsynced and without checksums. So everything it left below ``queue/`` is
synced and digested, and ``native.json.zst`` names these files and every row with its digest. No
pickle is opened before each file has proven to be the one that was sealed (A1, P3).
May import: `files`, `manifest`, `packing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.encoding import encode_array, encode_object
from outlast.durable.files import Files, digest_file, walk, write_file
from outlast.durable.manifest import FileEntry, decode, require_format, sha256
from outlast.durable.packing import pack, unpack
from outlast.errors import CorruptData, UnsupportedFormat
from outlast.model.ids import AttemptKey

FORMAT = 1


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class NativeRow(_Record, frozen=True, kw_only=True):
    """One saved row."""

    key: AttemptKey
    digest: str


class NativeIndex(_Record, frozen=True, kw_only=True):
    """native.json.zst: what a checkpoint below ``queue/`` holds for its cut, rows and files."""

    format: int
    partition: str
    units: int
    """Storage units that wrote it; no other number can read it."""
    files: tuple[FileEntry, ...]
    rows: tuple[NativeRow, ...]

    @property
    def digests(self) -> dict[AttemptKey, str]:
        return {row.key: row.digest for row in self.rows}


def is_native(files: Files, directory: PurePosixPath) -> bool:
    """Whether the rows of a cut stand below `directory` as a foreign checkpoint."""
    return files.exists(directory / names.NATIVE)


def seal_native(
    files: Files,
    directory: PurePosixPath,
    *,
    partition: str,
    units: int,
    digests: Mapping[AttemptKey, str],
) -> tuple[FileEntry, ...]:
    """Sync and digest what stands below ``queue/``, and name it with the rows of the cut."""
    directories, found = walk(files, directory / names.NATIVE_TREE)
    entries: list[FileEntry] = []
    for path in found:
        files.fsync_file(path)
        size, digest = digest_file(files, path)
        name = str(path.relative_to(directory))
        entries.append(FileEntry(name=name, size=size, sha256=digest))
    rows = tuple(NativeRow(key=key, digest=digests[key]) for key in sorted(digests))
    index = NativeIndex(
        format=FORMAT, partition=partition, units=units, files=tuple(entries), rows=rows
    )
    data = pack(encode_object(index, ready={"rows": encode_array(index.rows)}))
    write_file(files, directory / names.NATIVE, data=data)
    for path in (*directories, directory):
        files.fsync_dir(path)
    return (*entries, FileEntry(name=names.NATIVE, size=len(data), sha256=sha256(data)))


def read_native(files: Files, directory: PurePosixPath) -> NativeIndex:
    """The index of a native checkpoint, every file that it names verified and no other there.

    Raises CorruptData for any mismatch, UnsupportedFormat for another format, DiskError.
    """
    where = str(directory / names.NATIVE)
    data = unpack(files.read(directory / names.NATIVE), where=where)
    index = decode(data, NativeIndex, where=where)
    require_format(index.format, where=where)
    _, found = walk(files, directory / names.NATIVE_TREE)
    standing = {str(path.relative_to(directory)) for path in found}
    odd = standing ^ {entry.name for entry in index.files}
    if odd:
        raise CorruptData(f"{directory}: {min(odd)} is not both there and in {names.NATIVE}")
    for entry in index.files:
        size, digest = digest_file(files, directory / entry.name)
        if (size, digest) != (entry.size, entry.sha256):
            raise CorruptData(
                f"{directory / entry.name}: {size} bytes with sha256 {digest[:12]}, sealed were "
                f"{entry.size} with {entry.sha256[:12]}; it is not loaded"
            )
    if len(index.digests) != len(index.rows):
        raise CorruptData(f"{where}: a row key stands twice")
    return index


def refuse_native(directory: PurePosixPath) -> UnsupportedFormat:
    """For whoever reads segments only."""
    return UnsupportedFormat(
        f"{directory} holds its rows as a checkpoint of TransferQueue, which only TransferQueue "
        "reads. Resume with data_plane.impl: transfer_queue and data_plane.storage_units as they "
        "were; its next snapshot with data_plane.checkpoint: segments can be read everywhere"
    )
