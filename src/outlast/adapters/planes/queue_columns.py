"""Rows as TransferQueue columns, and the checks that every reply must pass.

TransferQueue leaves out keys and fields that it lacks, takes any dtype for a known column, and says
so nowhere. So a reply is compared with its request: each row carries its own key and digest, every
column its one dtype, and the content is digested again (A1). All columns are jagged: a dense one
would be pickled with its whole batch in every row of a native checkpoint.
May import: `rows`, numpy, torch and tensordict (when called).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outlast.errors import InvariantError
from outlast.model.ids import AttemptKey
from outlast.rows import Row, row_digest

DTYPES: Mapping[str, type[np.generic]] = {
    "identity": np.uint8,  # key and digest
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "logprobs": np.float32,
    "weight_versions": np.int32,
    "loss_mask": np.bool_,
    "reward": np.float32,  # [1]
    "mask_sample": np.bool_,  # [1]
    "extra_names": np.uint8,  # JSON
    "extra_values": np.float64,
}
_TOKENS = ("prompt_ids", "response_ids", "logprobs", "weight_versions", "loss_mask")
Column = NDArray[np.generic]


class QueueFault(Exception):
    """TransferQueue is gone, silent, or answered something else than what was asked."""


def encode(rows: Sequence[tuple[Row, str]]) -> Any:
    """A TensorDict holding `rows`, each with its digest, in that order."""
    import torch
    from tensordict import TensorDict

    per_row = [_columns(row, digest) for row, digest in rows]
    fields = {
        name: torch.nested.as_nested_tensor(
            [torch.from_numpy(columns[name]) for columns in per_row], layout=torch.jagged
        )
        for name in DTYPES
    }
    return TensorDict(fields, batch_size=len(per_row))


def _columns(row: Row, digest: str) -> dict[str, Column]:
    names = sorted(row.extras)
    columns: dict[str, Any] = {name: getattr(row, name) for name in _TOKENS}
    columns["identity"] = _bytes(_identity(row.key, digest))
    columns["reward"] = [row.reward]
    columns["mask_sample"] = [row.mask_sample]
    columns["extra_names"] = _bytes(json.dumps(names))
    columns["extra_values"] = [row.extras[name] for name in names]
    return {name: np.array(columns[name], dtype) for name, dtype in DTYPES.items()}


def _identity(key: AttemptKey, digest: str) -> str:
    return f"{key} {digest}"


def _bytes(text: str) -> Column:
    return np.frombuffer(text.encode(), np.uint8)


def decode(reply: Any, wanted: Mapping[AttemptKey, str | None]) -> list[Row]:
    """The rows of `wanted` in order. A digest of None is taken from the row itself.

    Raises QueueFault for whatever differs from the request.
    """
    absent = [name for name in DTYPES if name not in reply.keys()]  # noqa: SIM118  # a TensorDict
    if absent:
        raise QueueFault(f"the reply lacks columns {absent}, required for {len(wanted)} rows")
    columns = {name: _unbound(name, reply[name], rows=len(wanted)) for name in DTYPES}
    return [
        _row(key, {name: column[at] for name, column in columns.items()}, digest=digest)
        for at, (key, digest) in enumerate(wanted.items())
    ]


def _unbound(name: str, column: Any, *, rows: int) -> list[Column]:
    values = [] if not hasattr(column, "unbind") else list(column.unbind())
    if len(values) != rows:
        raise QueueFault(f"column {name} has {len(values)} rows, asked for {rows}")
    return [_array(name, value) for value in values]


def _array(name: str, value: Any) -> Column:
    array: Column | None = value.numpy() if hasattr(value, "numpy") else None
    if array is None or array.dtype != DTYPES[name] or array.ndim != 1:
        found = type(value).__name__ if array is None else f"{array.dtype}{list(array.shape)}"
        required = f"{np.dtype(DTYPES[name])} of one dimension"
        raise QueueFault(f"column {name} came back as {found}, required {required}")
    return array


def _row(key: AttemptKey, columns: Mapping[str, Column], *, digest: str | None) -> Row:
    stands, _, carried = columns["identity"].tobytes().decode("ascii", "replace").partition(" ")
    if stands != str(key) or (digest is not None and carried != digest):
        raise QueueFault(f"asked for row {key} with digest {digest}, got {stands} with {carried}")
    if len(columns["reward"]) != 1 or len(columns["mask_sample"]) != 1:
        raise QueueFault(f"row {key}: reward and mask_sample must have one entry each")
    try:
        row = _decoded(key, columns)
    except (ValueError, InvariantError) as error:
        raise QueueFault(f"row {key} is not a row: {error}") from error
    if row_digest(row) != carried:
        raise QueueFault(f"row {key} does not have its digest {carried[:12]}")
    return row


def _decoded(key: AttemptKey, columns: Mapping[str, Any]) -> Row:
    names = json.loads(columns["extra_names"].tobytes())
    values = columns["extra_values"].tolist()
    return Row(
        key=key,
        reward=float(columns["reward"][0]),
        mask_sample=bool(columns["mask_sample"][0]),
        extras=dict(zip(names, values, strict=True)),
        **{name: columns[name].copy() for name in _TOKENS},
    )
