"""What leaves the ledger: records of the consumption log, and the port the model writes them to.

Framing, checksums and the disk are `durable.consumption`; here is only what is said. A `replayed`
step is never counted as trained (S1). May import: `ids`, `groups`, `cut`.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlast.model.cut import LogPosition
from outlast.model.groups import DropReason, PromptRef
from outlast.model.ids import GroupId, Step


class Applied(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="applied"):
    """An optimizer step happened and consumed exactly these groups."""

    step: Step
    groups: tuple[GroupId, ...]
    """In training order."""
    refs: tuple[PromptRef, ...]
    """Of `groups`, in the same order."""
    history: str


class Dropped(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="dropped"):
    """A drawn prompt was settled without training."""

    group: GroupId
    ref: PromptRef
    reason: DropReason


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
