"""Makers of prompt-group records for tests, with every field consistent (S6) unless overridden.

Public: authors of samplers and planes use them too. May import: `model`.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.model.groups import (
    Attempt,
    AttemptState,
    DropReason,
    Group,
    GroupState,
    PromptRef,
    Receipt,
    RecoveryLevel,
    Sibling,
)
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    SiblingIndex,
    Step,
    TrainerVersion,
)

STEPPED = frozenset({GroupState.CLAIMED, GroupState.APPLIED, GroupState.REPLAY, GroupState.TRAINED})
UNSHAPED = frozenset({GroupState.OPEN, GroupState.COMPLETE})


def make_sibling(group: int, index: int, *, version: int = 0, sealed: bool = True) -> Sibling:
    """A sibling whose one attempt was sealed, or dispatched, at trainer `version`."""
    key = AttemptKey(GroupId(group), SiblingIndex(index), Incarnation(1), 0)
    receipt = Receipt(
        key=key,
        digest=f"{group:032x}{index:032x}",
        reward=float(index % 2),
        prompt_tokens=8,
        response_tokens=4,
        min_version=TrainerVersion(version),
        max_version=TrainerVersion(version),
        truncated=False,
        mask_sample=False,
    )
    return Sibling(
        index=SiblingIndex(index),
        attempt=Attempt(
            key=key,
            state=AttemptState.SEALED if sealed else AttemptState.DISPATCHED,
            version=TrainerVersion(version),
        ),
        receipt=receipt if sealed else None,
        infrastructure_failures=0,
        data_failures=0,
        abrupt_ends=0,
    )


def make_group(
    group: int,
    *,
    state: GroupState = GroupState.BUFFERED,
    versions: Sequence[int] = (0, 0),
    target: int | None = None,
    step: int | None = None,
    position: int | None = None,
    prompt: PromptRef | None = None,
) -> Group:
    """A group with one sibling per entry of `versions`; in OPEN the last one is in flight.

    `position` defaults to the id, and `step` to `target` or 1, in the states that have one.
    """
    last = len(versions) - 1
    shaped = state not in UNSHAPED
    where = group if position is None else position
    when = (target or 1) if step is None else step
    return Group(
        id=GroupId(group),
        prompt=prompt or PromptRef(dataset="test", epoch=0, index=group),
        state=state,
        level=RecoveryLevel.SIBLING,
        siblings=tuple(
            make_sibling(group, i, version=version, sealed=state is not GroupState.OPEN or i < last)
            for i, version in enumerate(versions)
        ),
        target_step=None if target is None else Step(target),
        step=Step(when) if state in STEPPED else None,
        position=where if shaped else None,
        trained_rewards=tuple(float(i % 2) for i in range(len(versions))) if shaped else (),
        keep=(True,) * len(versions) if shaped else (),
        dropped=DropReason.STALE if state is GroupState.DROPPED else None,
    )
