"""What the fakes of a simulation do: answers of the engine, faults of the trainer.

Plain values, drawn from a seed or written by hand, one per (group, sibling, attempt) or step.
May import: `model.ids`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import StrEnum

from outlast.model.ids import AttemptKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How the engine answers one attempt. Times in virtual seconds."""

    latency_s: float = 1.0
    """From request to last token, spread over the chunks."""
    tokens: int | None = 6
    """Length of the response; None fills the budget."""
    chunks: int = 3
    fails_after: int | None = None
    """Chunks delivered before the engine fails (a partial stream); None does not fail."""
    hangs: bool = False
    """Never answers; only an abort or a deadline ends it."""
    late: bool = False
    """Answers at once when it is abandoned, instead of going away."""
    duplicate: bool = False
    """Its result is offered a second time after it was sealed."""
    foreign: bool = False
    """An answer of an earlier life to the same sibling is offered as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Shares of attempts that misbehave; all drawn per attempt key from the seed."""

    latency_s: float = 1.0
    straggler_share: float = 0.0
    straggler_s: float = 20.0
    failure_share: float = 0.0
    hang_share: float = 0.0
    late_share: float = 0.0
    duplicate_share: float = 0.0
    foreign_share: float = 0.0
    update_s: float = 0.3
    """Longest weight update."""
    survives: bool = False
    """Whether the engine is a process of its own that outlives a killed controller."""

    def draw(self, seed: int, key: AttemptKey) -> Answer:
        """The answer to attempt `key`: the same in every process."""
        rng = random.Random(f"{seed}/{key}")
        slow = rng.random() < self.straggler_share
        fails = rng.random() < self.failure_share
        return Answer(
            latency_s=self.latency_s * (0.2 + rng.random())
            + slow * rng.random() * self.straggler_s,
            # The length belongs to the sibling: every attempt would decode the same tokens (S11).
            tokens=random.Random(f"{seed}/{key.group}/{key.sibling}").randint(1, 8),
            chunks=rng.randint(1, 3),
            fails_after=rng.randint(0, 2) if fails else None,
            hangs=rng.random() < self.hang_share,
            late=rng.random() < self.late_share,
            duplicate=rng.random() < self.duplicate_share,
            foreign=rng.random() < self.foreign_share,
        )


class TrainerFault(StrEnum):
    """What goes wrong in one optimizer step; each fault strikes once."""

    SLOW = "slow"
    """The step takes a hundred times as long."""
    HANGS = "hangs"
    """`finish_step` never returns."""
    FAILS_BEFORE = "fails_before"
    """`finish_step` raises before the weights change."""
    FAILS_AFTER = "fails_after"
    """`finish_step` raises after the weights changed."""
    FAILS_IN_CHUNK = "fails_in_chunk"
    """`accumulate` raises."""
    FAILS_IN_WRITE = "fails_in_write"
    """Writing the trainer checkpoint of that step raises half-way."""


@dataclass(slots=True, kw_only=True)
class TrainerProfile:
    """Speed of the fake trainer, and faults by step. Times in virtual seconds."""

    chunk_s: float = 0.2
    finish_s: float = 0.3
    stage_s: float = 0.1
    write_s: float = 0.3
    faults: dict[int, TrainerFault] = field(default_factory=dict)

    def strikes(self, step: int, *kinds: TrainerFault) -> TrainerFault | None:
        """Take the fault of `step` if it is one of `kinds`."""
        if self.faults.get(step) in kinds:
            return self.faults.pop(step)
        return None
