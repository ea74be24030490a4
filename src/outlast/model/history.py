"""The history digest: what was trained, in which order, from which rows (S7).

history(s) = sha256(history(s-1), step, group ids, row digests). Two trainer states with equal
history at a step were made from the same data, whatever crashed in between.
May import: `ids`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from outlast.model.ids import GroupId, Step


def extend_history(
    history: str, *, step: Step, groups: Sequence[GroupId], rows: Sequence[str]
) -> str:
    """History after `step`; `groups` in training order, `rows` their row digests in that order."""
    digest = hashlib.sha256(bytes.fromhex(history))
    digest.update(struct.pack("<qqq", step, len(groups), len(rows)))
    for group in groups:
        digest.update(struct.pack("<q", group))
    for row in rows:
        digest.update(bytes.fromhex(row))
    return digest.hexdigest()
