"""The rollouts inside a cut, one record per sibling, as people and notebooks want them.

Pure on files: no tokenizer here, token ids are what a cut holds. Read-only.
May import: `durable`, `model`, `rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from outlast.durable.cutcodec import LoadedCut
from outlast.durable.files import Files
from outlast.durable.segmentfile import read_saved
from outlast.model.groups import Group, Sibling
from outlast.rows import Row


class Stage(StrEnum):
    """How far a sibling had come at the cut."""

    SEALED = "sealed"
    PARTIAL = "partial"
    """Unfinished, its first tokens saved (level token)."""
    WAITING = "waiting"
    """Nothing of it is saved."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One sibling. Lists are empty and values None where the cut holds nothing."""

    group: int
    sibling: int
    state: str
    """Of the group."""
    stage: Stage
    prompt_index: int
    prompt_epoch: int
    prompt: str | None = None
    response: str | None = None
    """Texts; None without a tokenizer."""
    reward: float | None
    """Raw."""
    trained_reward: float | None
    """Shaped, once the group is complete."""
    keep: bool | None
    min_version: int | None
    max_version: int | None
    truncated: bool | None
    tokens: int
    """Response tokens."""
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    weight_versions: list[int]


def rollouts_of(files: Files, loaded: LoadedCut) -> Iterator[Rollout]:
    """Every sibling of every unsettled group, by (group, sibling).

    Raises CorruptData for rows that do not prove whole, or DiskError.
    """
    named = loaded.cut.row_keys
    rows = {} if not named else read_saved(files, loaded.rows).rows
    partial = {row.key: row for row in loaded.prefixes}
    for group in loaded.cut.groups:
        for sibling in group.siblings:
            key = sibling.attempt.key
            if sibling.receipt is not None:
                yield _rollout(group, sibling, row=rows[key], stage=Stage.SEALED)
            elif key in partial:
                yield _rollout(group, sibling, row=partial[key], stage=Stage.PARTIAL)
            else:
                yield _rollout(group, sibling, row=None, stage=Stage.WAITING)


def _rollout(group: Group, sibling: Sibling, *, row: Row | None, stage: Stage) -> Rollout:
    at, receipt = sibling.index, sibling.receipt
    versions = [] if row is None else row.weight_versions.tolist()
    return Rollout(
        group=group.id,
        sibling=at,
        state=group.state,
        stage=stage,
        prompt_index=group.prompt.index,
        prompt_epoch=group.prompt.epoch,
        reward=None if receipt is None else receipt.reward,
        trained_reward=group.trained_rewards[at] if group.trained_rewards else None,
        keep=group.keep[at] if group.keep else None,
        min_version=min(versions, default=None),
        max_version=max(versions, default=None),
        truncated=None if receipt is None else receipt.truncated,
        tokens=len(versions),
        prompt_ids=[] if row is None else row.prompt_ids.tolist(),
        response_ids=[] if row is None else row.response_ids.tolist(),
        logprobs=[] if row is None else row.logprobs.tolist(),
        weight_versions=versions,
    )
