"""Rows as Arrow record batches: one schema, exact bits, any Arrow tool reads a segment.

Keeps A1: integers, booleans and IEEE floats travel as they are, NaN payloads included. A segment
is an Arrow IPC stream, which is the concatenation of a schema message, batch messages and an
end-of-stream mark; so batches are encoded in memory and written by whoever owns the file.
May import: `model.ids`, `rows`, pyarrow, numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from outlast.errors import CorruptData
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.rows import Row

Scalar = TypeVar("Scalar", bound=np.generic)

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""End mark of an Arrow IPC stream (Arrow columnar format, "IPC Streaming Format")."""

_TOKEN_COLUMNS = ("prompt_ids", "response_ids", "logprobs", "weight_versions", "loss_mask")
_TYPES = {
    "prompt_ids": pa.int32(),
    "response_ids": pa.int32(),
    "logprobs": pa.float32(),
    "weight_versions": pa.int32(),
    "loss_mask": pa.bool_(),
}
SCHEMA = pa.schema(
    [
        pa.field("group", pa.int64(), nullable=False),
        pa.field("sibling", pa.int32(), nullable=False),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("n", pa.int32(), nullable=False),
        *(pa.field(name, pa.large_list(_TYPES[name]), nullable=False) for name in _TOKEN_COLUMNS),
        pa.field("reward", pa.float32(), nullable=False),
        pa.field("mask_sample", pa.bool_(), nullable=False),
        pa.field("extras", pa.map_(pa.string(), pa.float64()), nullable=False),
    ],
    metadata={"outlast.rows": "1"},
)
HEADER: bytes = SCHEMA.serialize().to_pybytes()
"""First bytes of every segment."""


def encode_rows(rows: Sequence[Row]) -> memoryview:
    """One record batch message holding `rows` in order."""
    keys = [row.key for row in rows]
    columns = [
        pa.array([key.group for key in keys], pa.int64()),
        pa.array([key.sibling for key in keys], pa.int32()),
        pa.array([key.incarnation for key in keys], pa.int64()),
        pa.array([key.n for key in keys], pa.int32()),
        *(_lists(name, [getattr(row, name) for row in rows]) for name in _TOKEN_COLUMNS),
        pa.array(np.array([row.reward for row in rows], np.float32)),
        pa.array(np.array([row.mask_sample for row in rows], np.bool_)),
        _maps(rows),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return memoryview(batch.serialize())


def _offsets(lengths: Sequence[int], dtype: type[np.signedinteger]) -> NDArray[np.signedinteger]:
    offsets = np.zeros(len(lengths) + 1, dtype)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _lists(name: str, values: Sequence[NDArray[np.generic]]) -> pa.Array:
    flat = pa.array(np.concatenate(values), _TYPES[name])
    offsets = pa.array(_offsets([len(value) for value in values], np.int64))
    return pa.LargeListArray.from_arrays(offsets, flat)


def _maps(rows: Sequence[Row]) -> pa.Array:
    names = list(chain.from_iterable(row.extras for row in rows))
    values = list(chain.from_iterable(row.extras.values() for row in rows))
    offsets = pa.array(_offsets([len(row.extras) for row in rows], np.int32))
    flat = pa.array(np.array(values, np.float64))
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()), flat)


@dataclass(frozen=True, slots=True)
class BatchSpan:
    """Where one record batch message lies in its segment, in bytes, and how many rows it has."""

    offset: int
    length: int
    rows: int


def decode_batch(message: bytes, *, where: str) -> tuple[Row, ...]:
    """The rows of one record batch message. Raises CorruptData when it is none."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), SCHEMA)
        batch.validate(full=True)
        return _rows(batch)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, ValueError) as error:
        raise CorruptData(f"{where} holds no readable record batch: {error}") from error


def decode_segment(data: bytes, *, where: str) -> tuple[tuple[BatchSpan, tuple[Row, ...]], ...]:
    """Every batch of a whole segment in order. Raises CorruptData when it is none."""
    if not data.startswith(HEADER) or not data.endswith(END_OF_STREAM):
        raise CorruptData(
            f"{where} is not a finished segment of this format "
            f"({len(data)} bytes; its schema or its end mark is missing)"
        )
    batches = []
    source = pa.BufferReader(pa.py_buffer(data))
    source.seek(len(HEADER))
    try:
        while source.tell() < len(data) - len(END_OF_STREAM):
            start = source.tell()
            message = pa.ipc.read_message(source)
            batch = pa.ipc.read_record_batch(message, SCHEMA)
            batch.validate(full=True)
            span = BatchSpan(offset=start, length=source.tell() - start, rows=batch.num_rows)
            batches.append((span, _rows(batch)))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OSError, EOFError, ValueError) as error:
        raise CorruptData(f"{where} holds no readable record batches: {error}") from error
    return tuple(batches)


def _rows(batch: pa.RecordBatch) -> tuple[Row, ...]:
    prompts = _split(batch, "prompt_ids", dtype=np.int32)
    responses = _split(batch, "response_ids", dtype=np.int32)
    logprobs = _split(batch, "logprobs", dtype=np.float32)
    versions = _split(batch, "weight_versions", dtype=np.int32)
    masks = _split(batch, "loss_mask", dtype=np.bool_)
    keys = zip(*(batch.column(i).to_pylist() for i in range(4)), strict=True)
    rewards = batch.column("reward").to_pylist()
    samples = batch.column("mask_sample").to_pylist()
    extras = batch.column("extras").to_pylist()
    return tuple(
        Row(
            key=AttemptKey(
                group=GroupId(group), sibling=SiblingIndex(sibling), incarnation=Incarnation(i), n=n
            ),
            prompt_ids=prompts[at],
            response_ids=responses[at],
            logprobs=logprobs[at],
            weight_versions=versions[at],
            loss_mask=masks[at],
            reward=rewards[at],
            mask_sample=samples[at],
            extras=dict(extras[at]),
        )
        for at, (group, sibling, i, n) in enumerate(keys)
    )


def _split(batch: pa.RecordBatch, name: str, *, dtype: type[Scalar]) -> list[NDArray[Scalar]]:
    """One array per row, copied, so that a live row does not keep its whole segment in memory."""
    column = batch.column(name)
    flat: NDArray[Scalar] = column.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    return [flat[a:b].copy() for a, b in pairwise(column.offsets.to_numpy())]
