"""Who trains which sibling of a chunk: a pure function of lengths, the same in every life.

May import: nothing of Outlast.
"""

from __future__ import annotations

from collections.abc import Sequence


def shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Positions of `lengths` for each of `ranks`, ascending: balanced in number and in tokens.

    The longest first, to whoever has least so far and fewer than his part of the number. Length 0
    costs nothing: those are dealt in turn, after the others.
    """
    order = sorted(range(len(lengths)), key=lambda at: (-lengths[at], at))
    costly = [at for at in order if lengths[at]]
    most = -(-len(costly) // ranks)
    result: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for at in costly:
        room = [rank for rank in range(ranks) if len(result[rank]) < most]
        rank = min(room, key=lambda rank: (load[rank], rank))
        result[rank].append(at)
        load[rank] += lengths[at]
    for turn, at in enumerate(order[len(costly) :]):
        result[turn % ranks].append(at)
    return [sorted(share) for share in result]
