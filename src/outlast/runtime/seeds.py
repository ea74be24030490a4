"""Random streams of rollouts: derived, never drawn, so a restart cannot shift them.

A seed is the first 63 bits of sha256 over a run seed and names. May import: `model.ids`.
"""

from __future__ import annotations

import hashlib
import struct

from outlast.model.ids import AttemptKey


def _seed(*parts: int) -> int:
    data = struct.pack(f"<{len(parts)}q", *parts)
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1


def sibling_seed(run: int, key: AttemptKey) -> int:
    """Stream of one sibling, the same in every attempt and incarnation."""
    return _seed(0, run, key.group, key.sibling)


def attempt_seed(run: int, key: AttemptKey, *, turn: int, repeatable: bool) -> int:
    """Stream of one generation call. Unless `repeatable`, every attempt has its own."""
    if repeatable:
        return _seed(1, run, key.group, key.sibling, turn)
    return _seed(2, run, key.group, key.sibling, turn, key.incarnation, key.n)
