"""Who trains which sibling of a chunk: a pure function of lengths, the same in every life.

May import: `ports`.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.ports import TrainGroup


def costs(groups: Sequence[TrainGroup], lengths: Sequence[int], *, silent_too: bool) -> list[int]:
    """What each sibling of `groups` costs to train, given its length: nothing when it is not kept,
    nor (unless `silent_too`) when the kept rewards of its group are all equal."""
    result, length = [], iter(lengths)
    for group in groups:
        kept = {r for r, keep in zip(group.rewards, group.keep, strict=True) if keep}
        loud = silent_too or len(kept) > 1
        result += [next(length) if keep and loud else 0 * next(length) for keep in group.keep]
    return result


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
