"""Rows: the tensors of one sealed attempt, with fixed dtypes and a digest that names their content.

Layer of `ports`. Keeps A1 (what is restored is bit-exact): the digest covers every byte that
training may read. May import: `model`, numpy.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outlast.errors import InvariantError
from outlast.model.ids import AttemptKey

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One sealed attempt. P prompt tokens, T response tokens; immutable by convention.

    `loss_mask` is false on response tokens the policy did not sample (tool output, user turns).
    `logprobs` and `weight_versions` are those under which each token was really sampled.
    `extras` are named numeric columns of the environment (float64 scalars).
    """

    key: AttemptKey
    prompt_ids: Int32  # [P]
    response_ids: Int32  # [T]
    logprobs: Float32  # [T]
    weight_versions: Int32  # [T]
    loss_mask: Bool  # [T]
    reward: float  # raw; stored as float32
    mask_sample: bool
    extras: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        length = len(self.response_ids)
        columns: tuple[tuple[str, NDArray[np.generic], type[np.generic]], ...] = (
            ("prompt_ids", self.prompt_ids, np.int32),
            ("response_ids", self.response_ids, np.int32),
            ("logprobs", self.logprobs, np.float32),
            ("weight_versions", self.weight_versions, np.int32),
            ("loss_mask", self.loss_mask, np.bool_),
        )
        for name, column, dtype in columns:
            if column.ndim != 1 or column.dtype != dtype:
                raise InvariantError(
                    f"row {self.key}: {name} is {column.dtype}{list(column.shape)}, "
                    f"required {np.dtype(dtype)} of one dimension"
                )
            if name != "prompt_ids" and len(column) != length:
                raise InvariantError(
                    f"row {self.key}: {name} has {len(column)} entries for {length} tokens"
                )

    @property
    def nbytes(self) -> int:
        """Bytes of the token columns."""
        return int(
            self.prompt_ids.nbytes
            + self.response_ids.nbytes
            + self.logprobs.nbytes
            + self.weight_versions.nbytes
            + self.loss_mask.nbytes
        )


def row_digest(row: Row) -> str:
    """Digest of a row's content: sha256 (hex) over its columns, lengths included, key excluded.

    The key is excluded so that equal content has equal digests in every incarnation (S11).
    """
    digest = hashlib.sha256()
    digest.update(struct.pack("<II", len(row.prompt_ids), len(row.response_ids)))
    for column in (row.prompt_ids, row.response_ids, row.logprobs, row.weight_versions):
        digest.update(np.ascontiguousarray(column).data)
    digest.update(np.packbits(row.loss_mask).data)
    digest.update(struct.pack("<f?", row.reward, row.mask_sample))
    for name in sorted(row.extras):
        digest.update(f"{name}\0".encode() + struct.pack("<d", row.extras[name]))
    return digest.hexdigest()
