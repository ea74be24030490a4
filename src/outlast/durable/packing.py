"""Compressed JSON: records of many groups repeat their field names and shrink to a sixth.

A standard Zstandard frame, so that ``zstd -dc state.json.zst`` shows a cut to anyone. The bytes on
disk are what manifests digest. Keeps P6. May import: `errors`, pyarrow.
"""

from __future__ import annotations

import pyarrow as pa

from outlast.errors import CorruptData

MAGIC = b"\x28\xb5\x2f\xfd"
"""First bytes of every frame (RFC 8878, section 3.1.1)."""
LEVEL = 1
"""Higher levels cost more time than the bytes they save are worth here."""


def pack(data: bytes) -> bytes:
    """One frame; the interpreter is not held while it is made."""
    frame: bytes = pa.Codec("zstd", compression_level=LEVEL).compress(data, asbytes=True)
    return frame


def unpack(frame: bytes, *, where: str) -> bytes:
    """The content of a frame. Raises CorruptData when it is none."""
    if not frame.startswith(MAGIC):
        raise CorruptData(f"{where} is not a Zstandard frame: it starts with {frame[:4]!r}")
    try:
        with pa.input_stream(pa.py_buffer(frame), compression="zstd") as stream:
            data: bytes = stream.read()
    except (OSError, pa.ArrowInvalid) as error:
        raise CorruptData(f"{where} is not a Zstandard frame: {error}") from error
    return data
