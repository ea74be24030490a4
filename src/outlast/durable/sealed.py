"""Single-file records that prove themselves: run.json, incarnations, ends, the bootstrap anchor.

They stand in no manifest, and a flipped digit in `restored_from` would silently change the lineage
(P3). So each is two JSON documents, one a line: the record, and the sha256 of the first line.
May import: `manifest`, `verify`.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outlast.durable.manifest import encode, sha256
from outlast.durable.verify import decode_intact
from outlast.errors import CorruptData

T = TypeVar("T", bound=msgspec.Struct)


def seal(record: msgspec.Struct) -> bytes:
    """The two lines of a record."""
    line = encode(record)
    return line + f'"sha256:{sha256(line)}"\n'.encode()


def unseal(data: bytes, kind: type[T], *, where: str) -> T:
    """The record in `data`. Raises CorruptData for a broken seal, UnsupportedFormat for an intact
    record that this release does not read."""
    line, newline, _ = data.partition(b"\n")
    line += newline
    if data != line + f'"sha256:{sha256(line)}"\n'.encode():
        raise CorruptData(
            f"{where} does not match its own checksum ({len(data)} bytes). Nothing was changed. "
            f"Restore it from a backup, or continue in a new run directory."
        )
    return decode_intact(line, kind, where=where)
