"""JSON of large records, piece by piece, so that no single call holds the interpreter for long.

Keeps P6 (one C call over ten thousand groups would hold it for tens of milliseconds). The bytes
are those of `manifest.encode`: fields in declaration order, one trailing newline.
May import: `errors`, msgspec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

RECORDS_PER_PIECE = 64
"""About 0.2 ms of encoding for groups of 8 siblings."""

_encoder = msgspec.json.Encoder(order="deterministic")


def encode_value(value: object) -> bytes:
    """Compact JSON of one value."""
    return _encoder.encode(value)


def encode_array(records: Sequence[object]) -> bytes:
    """JSON array of many records, encoded a few at a time."""
    pieces: list[bytes] = []
    remaining = iter(records)
    while chunk := list(islice(remaining, RECORDS_PER_PIECE)):
        pieces.append(_encoder.encode(chunk)[1:-1])
    return join_array(pieces)


def join_array(pieces: Sequence[bytes]) -> bytes:
    """JSON array of values that are encoded already."""
    return b"[" + b",".join(pieces) + b"]"


def encode_object(record: msgspec.Struct, *, ready: Mapping[str, bytes]) -> bytes:
    """JSON object of `record`, taking the fields in `ready` as encoded already."""
    return b"{" + b",".join(_members(record, ready)) + b"}\n"


def _members(record: msgspec.Struct, ready: Mapping[str, bytes]) -> Iterator[bytes]:
    for name in record.__struct_fields__:
        value = ready[name] if name in ready else _encoder.encode(getattr(record, name))
        yield _encoder.encode(name) + b":" + value
