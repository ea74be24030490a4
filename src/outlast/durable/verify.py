"""Verification of a published tree: marker, manifest, inventory, sizes, digests, in that order.

Tells three things apart (P3, P4, P5): `CorruptData` is a proven mismatch, `UnsupportedFormat` an
intact tree that this release does not read, `DiskError` a disk that did not answer, which proves
nothing. Changes nothing (S9). May import: `files`, `manifest`.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TypeVar

import msgspec

from outlast.durable.files import Files, digest_file, walk
from outlast.durable.manifest import (
    COMMITTED,
    MANIFEST,
    FileEntry,
    Manifest,
    require_format,
    sha256,
)
from outlast.errors import CorruptData, UnsupportedFormat

T = TypeVar("T", bound=msgspec.Struct)


class _AnyFormat(msgspec.Struct):
    format: int


def decode_intact(data: bytes, kind: type[T], *, where: str) -> T:
    """Strictly decode bytes whose digest was verified: a mismatch is a format, not damage."""
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise UnsupportedFormat(
            f"{where} is intact, but not a {kind.__name__} that this release reads: {error}. "
            f"Use the release that wrote it, or start in a new directory."
        ) from error


def read_payload(files: Files, path: PurePosixPath) -> bytes:
    """A file that must be there. Raises CorruptData when it is not."""
    try:
        return files.read(path)
    except FileNotFoundError as error:
        raise CorruptData(f"{path} is missing") from error


def read_manifest(files: Files, directory: PurePosixPath) -> Manifest:
    """The manifest of a published tree, proven by its marker.

    Raises CorruptData, UnsupportedFormat or DiskError.
    """
    marker = read_payload(files, directory / COMMITTED)
    data = read_payload(files, directory / MANIFEST)
    if marker != sha256(data).encode() + b"\n":
        raise CorruptData(
            f"{directory}: COMMITTED says {marker[:12]!r}, MANIFEST.json has sha256 "
            f"{sha256(data)[:12]}"
        )
    where = str(directory / MANIFEST)
    require_format(decode_intact(data, _AnyFormat, where=where).format, where=where)
    return decode_intact(data, Manifest, where=where)


def verify_inventory(files: Files, directory: PurePosixPath, *, manifest: Manifest) -> None:
    """Files on disk are exactly those listed, with their sizes. Raises CorruptData, DiskError."""
    _, found = walk(files, directory)
    present = {str(path.relative_to(directory)) for path in found} - {MANIFEST, COMMITTED}
    listed = {entry.name: entry for entry in manifest.files}
    for name in sorted(listed.keys() - present):
        raise CorruptData(f"{directory / name} is missing")
    for name in sorted(present - listed.keys()):
        raise CorruptData(f"{directory / name} is not listed in MANIFEST.json")
    for name, entry in listed.items():
        size = files.stat(directory / name).size
        if size != entry.size:
            raise CorruptData(f"{directory / name} has {size} bytes, MANIFEST says {entry.size}")


def verify_file(files: Files, directory: PurePosixPath, *, entry: FileEntry) -> None:
    """One listed file, byte by byte. Raises CorruptData or DiskError."""
    try:
        size, digest = digest_file(files, directory / entry.name)
    except FileNotFoundError as error:
        raise CorruptData(f"{directory / entry.name} is missing") from error
    if (size, digest) != (entry.size, entry.sha256):
        raise CorruptData(
            f"{directory / entry.name}: {size} bytes with sha256 {digest[:12]}, "
            f"MANIFEST says {entry.size} bytes with {entry.sha256[:12]}"
        )


def verify_payload(
    files: Files, directory: PurePosixPath, *, manifest: Manifest, skip: tuple[str, ...] = ()
) -> None:
    """Digest of every listed file but those whose name starts with a prefix in `skip`.

    Trainer shards may be skipped here when each rank verifies what it loads (`verify_file`).
    """
    for entry in manifest.files:
        if not entry.name.startswith(skip):
            verify_file(files, directory, entry=entry)
