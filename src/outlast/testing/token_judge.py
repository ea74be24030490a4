"""Judges lives with long responses by their logs and by what lies on the disk between them (S13).

What a sibling had received is added up from the log, not asked of the program. May import:
`durable`, `testing.token_life`, `testing.fake_engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from outlast.durable.cutcodec import load_cut
from outlast.durable.files import PosixFiles
from outlast.durable.listing import read_run
from outlast.testing.fake_engine import attempt_of
from outlast.testing.shadow import Slot, Tokens
from outlast.testing.token_life import (
    RESPONSE_TOKENS,
    SIBLINGS,
    Acknowledged,
    Received,
    Record,
    Requested,
    Stored,
)


@dataclass(slots=True)
class Kept:
    """What the newest cut on the disk holds of each sibling."""

    sequence: int = 0
    prefixes: dict[Slot, Tokens] = field(default_factory=dict)
    sealed: set[Slot] = field(default_factory=set)


def kept_on_disk(run_dir: Path) -> Kept:
    """Read the newest cut, as the next life will find it; nothing is kept before the first one."""
    files, place = PosixFiles(), PurePosixPath(run_dir)
    cuts = [c for c in read_run(files, place, verify="payload").cuts if c.manifest is not None]
    if not cuts:
        return Kept()
    newest = max(cuts, key=lambda c: c.manifest.sequence if c.manifest is not None else 0)
    loaded = load_cut(files, place, found=newest)
    receipts = (receipt for group in loaded.cut.groups for receipt in group.receipts())
    return Kept(
        sequence=int(loaded.cut.sequence),
        prefixes={
            (int(row.key.group), int(row.key.sibling)): Tokens.of_row(row)
            for row in loaded.prefixes
        },
        sealed={(int(r.key.group), int(r.key.sibling)) for r in receipts},
    )


@dataclass(slots=True)
class TokenJudge:
    """Follows one run over its lives."""

    received: dict[Slot, Tokens] = field(default_factory=dict)
    """What the newest attempt of each sibling inherited and received."""
    violations: list[str] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    """Tokens decoded again, of each sibling after each kill."""
    kept: list[int] = field(default_factory=list)
    """Tokens inherited, likewise."""
    chunk_max: int = 0
    """Longest chunk of a stream."""
    rows: dict[Slot, Tokens] = field(default_factory=dict)
    _cut: Kept = field(default_factory=Kept)
    _acknowledged: int = 0

    def life(self, records: Sequence[Record]) -> None:
        """Take in what a life has logged."""
        asked: set[Slot] = set()
        for record in records:
            if isinstance(record, Acknowledged):
                self._acknowledged = record.sequence
            elif isinstance(record, Requested):
                self._requested(record, first=slot_of(record.key) not in asked)
                asked.add(slot_of(record.key))
            elif isinstance(record, Received):
                slot = slot_of(record.key)
                chunk = record.tokens.chunk()
                self.chunk_max = max(self.chunk_max, len(chunk.ids))
                self.received[slot] = self.received[slot].plus(chunk)
            else:
                self._stored(record)

    def killed(self, kept: Kept) -> None:
        """The life is dead, and this is what the disk holds."""
        self._require(
            kept.sequence >= self._acknowledged,
            f"A2: cut {self._acknowledged} was acknowledged, the disk holds {kept.sequence}",
        )
        self._cut = kept
        for slot, prefix in kept.prefixes.items():
            self._require(
                self.received.get(slot, Tokens()).begins_with(prefix),
                f"S13: the cut holds {prefix} of {slot}, received were {self.received.get(slot)}",
            )

    def finished(self) -> None:
        """The run has ended by itself: every response is whole."""
        lengths = sorted(len(row) for row in self.rows.values())
        self._require(
            lengths == [RESPONSE_TOKENS] * SIBLINGS, f"S13: responses of {lengths} tokens"
        )

    def _requested(self, request: Requested, *, first: bool) -> None:
        slot, prefix = slot_of(request.key), request.prefix
        before = self.received.get(slot)
        fresh = Tokens(prompt=prefix.prompt)
        expected = self._cut.prefixes.get(slot, fresh) if first else before or fresh
        self._require(
            slot not in self._cut.sealed, f"S2: {request.key} is generated though it was sealed"
        )
        self._require(
            prefix == expected,
            f"S13: {request.key} begins with {prefix}, kept for it were {expected}",
        )
        if first and before is not None:
            self.again.append(len(before) - len(prefix))
            self.kept.append(len(prefix))
        self.received[slot] = prefix

    def _stored(self, stored: Stored) -> None:
        slot = slot_of(stored.key)
        self._require(
            stored.tokens == self.received[slot],
            f"S13: row {stored.key} has {stored.tokens}, received were {self.received[slot]}",
        )
        self.rows[slot] = stored.tokens

    def _require(self, condition: bool, message: str) -> None:
        if not condition:
            self.violations.append(message)


def slot_of(key: str) -> Slot:
    """(group, sibling) of an attempt key in its text form."""
    attempt = attempt_of(f"{key}.t1")
    assert attempt is not None, key
    return int(attempt.group), int(attempt.sibling)
