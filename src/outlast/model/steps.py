"""Trainer version, history, and the records of steps that no durable checkpoint covers yet.

Records up to the version are APPLIED; records above it were applied in an earlier life and wait to
be re-executed from stored rows (REPLAY). Laws: S1, S7. May import: `ids`, `groups`, `cut`,
`history`.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlast.errors import InvariantError
from outlast.model.cut import GENESIS, Anchor, Cut
from outlast.model.groups import Group, StepRecord
from outlast.model.history import extend_history
from outlast.model.ids import TrainerVersion, next_step, version_after


class StepBook:
    """Owner of version and history; both move only when a step is finished or replayed."""

    def __init__(self) -> None:
        self.version = TrainerVersion(0)
        self.history = GENESIS
        self._records: list[StepRecord] = []

    @classmethod
    def restored(cls, cut: Cut, anchor: Anchor) -> StepBook:
        """The book of `cut` for a trainer that stands at `anchor`."""
        book = cls()
        book.version, book.history = anchor.version, anchor.history
        book._records = [r for r in cut.applied_steps if r.step > anchor.version]
        return book

    @property
    def records(self) -> tuple[StepRecord, ...]:
        """Steps above the durable version, in order."""
        return tuple(self._records)

    @property
    def to_replay(self) -> tuple[StepRecord, ...]:
        """Steps that an earlier life applied and this one has not re-executed yet."""
        return tuple(record for record in self._records if record.step > self.version)

    @property
    def top(self) -> TrainerVersion:
        """The version once everything is replayed."""
        return version_after(self._records[-1].step) if self._records else self.version

    def finish(
        self, groups: Sequence[Group], *, chunks: Sequence[int], outcome: dict[str, float]
    ) -> StepRecord:
        """A new step over `groups` (claimed for it, in training order) has happened."""
        step = next_step(self.version)
        if any(group.step != step for group in groups) or self.to_replay:
            raise InvariantError(
                f"S1: step {step} finishes over groups claimed for "
                f"{sorted({group.step for group in groups if group.step})} with "
                f"{len(self.to_replay)} steps still to replay"
            )
        ids = tuple(group.id for group in groups)
        rows = tuple(receipt.digest for group in groups for receipt in group.receipts())
        record = StepRecord(
            step=step,
            groups=ids,
            chunks=tuple(chunks),
            rows=rows,
            history=extend_history(self.history, step=step, groups=ids, rows=rows),
            outcome=outcome,
        )
        self._records.append(record)
        self.version, self.history = version_after(step), record.history
        return record

    def replayed(self) -> StepRecord:
        """The oldest step to replay has been re-executed."""
        record = self.to_replay[0]
        self.version, self.history = version_after(record.step), record.history
        return record

    def cover(self, version: TrainerVersion) -> tuple[StepRecord, ...]:
        """A durable checkpoint at `version` exists: forget and return the steps it covers."""
        covered = tuple(record for record in self._records if record.step <= version)
        self._records = [record for record in self._records if record.step > version]
        return covered
