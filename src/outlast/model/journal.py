"""What leaves the ledger: records of the consumption log, and the port the model writes them to.

Framing, checksums and the disk are `durable.consumption`; here is only what is said. A `replayed`
step is never counted as trained (S1). May import: `ids`, `groups`, `cut`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from outlast.model.cut import LogPosition
from outlast.model.groups import DropReason, Group, PromptRef, StepRecord
from outlast.model.ids import GroupId, Step


class Applied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="applied"):
    """An optimizer step happened and consumed exactly these groups."""

    step: Step
    groups: tuple[GroupId, ...]
    """In training order."""
    refs: tuple[PromptRef, ...]
    """Of `groups`, in the same order."""
    history: str
    lengths: tuple[tuple[int, ...], ...]
    """Response tokens of the siblings trained, by group in the order of `groups`."""
    masked: tuple[tuple[int, ...], ...]
    """The same of the siblings that `keep` left out."""

    @classmethod
    def of(cls, record: StepRecord, groups: Sequence[Group]) -> Applied:
        """The record of a finished step over `groups`, in training order."""
        return cls(
            step=record.step,
            groups=record.groups,
            refs=tuple(group.prompt for group in groups),
            history=record.history,
            lengths=tuple(_lengths(group, keep=True) for group in groups),
            masked=tuple(_lengths(group, keep=False) for group in groups),
        )


def _lengths(group: Group, *, keep: bool) -> tuple[int, ...]:
    pairs = zip(group.receipts(), group.keep, strict=True)
    return tuple(receipt.response_tokens for receipt, kept in pairs if kept is keep)


class Dropped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="dropped"):
    """A drawn prompt was settled without training."""

    group: GroupId
    ref: PromptRef
    reason: DropReason
    lengths: tuple[int, ...]
    """Response tokens of its finished siblings."""
    unfinished: int
    """How many siblings were not."""

    @classmethod
    def of(cls, group: Group, reason: DropReason) -> Dropped:
        lengths = tuple(receipt.response_tokens for receipt in group.receipts())
        return cls(
            group=group.id,
            ref=group.prompt,
            reason=reason,
            lengths=lengths,
            unfinished=len(group.siblings) - len(lengths),
        )


class Replayed(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="replayed"
):
    """A step was executed again from stored rows; it was `Applied` before."""

    step: Step
    outcome: dict[str, float]


JournalRecord = Applied | Dropped | Replayed


class Journal(Protocol):
    """Append-only record of consumption; appending is synchronous and in memory."""

    @property
    def position(self) -> LogPosition:
        """Where the next record starts."""
        ...

    def append(self, record: JournalRecord, /) -> None: ...
