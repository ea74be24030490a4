"""Immutable records of prompt groups, siblings, attempts and receipts.

They are the unit of persistence: strict msgspec structs, unknown fields refused at every level
(S10). Behaviour lives in `ledger`; derived values that depend on one record alone live here.
May import: `ids`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from outlast.model.ids import AttemptKey, GroupId, SiblingIndex, Step, TrainerVersion


class GroupState(StrEnum):
    """Where a drawn prompt group stands (DESIGN 4)."""

    OPEN = "open"
    COMPLETE = "complete"
    BUFFERED = "buffered"
    CLAIMED = "claimed"
    APPLIED = "applied"
    REPLAY = "replay"
    TRAINED = "trained"
    DROPPED = "dropped"


PERMIT_STATES = frozenset(
    {GroupState.OPEN, GroupState.COMPLETE, GroupState.BUFFERED, GroupState.CLAIMED}
)
"""States in which a group holds one permit of `max_buffered_rollouts`."""
SETTLED_STATES = frozenset({GroupState.TRAINED, GroupState.DROPPED})
"""States that leave the ledger for the consumption log."""


class AttemptState(StrEnum):
    """RESERVED -> DISPATCHED -> SEALED | FAILED | SUPERSEDED."""

    RESERVED = "reserved"
    DISPATCHED = "dispatched"
    SEALED = "sealed"
    FAILED = "failed"
    SUPERSEDED = "superseded"


class RecoveryLevel(StrEnum):
    """How finely a group survives an interruption; ordered from coarse to fine."""

    PROMPT_GROUP = "prompt_group"
    SIBLING = "sibling"
    TURN = "turn"
    TOKEN = "token"


class FailureKind(StrEnum):
    """Which budget a failed attempt is charged to."""

    INFRASTRUCTURE = "infrastructure"
    DATA = "data"


class DropReason(StrEnum):
    """Why a drawn prompt was settled without training."""

    STALE = "stale"
    FILTERED = "filtered"
    GAVE_UP = "gave_up"
    END_OF_DATA = "end_of_data"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class PromptRef(_Record, frozen=True, kw_only=True):
    """One item of the dataset. Its text is never stored in recovery state."""

    dataset: str
    """Digest of the dataset the index refers to."""
    epoch: int
    index: int


class Receipt(_Record, frozen=True, kw_only=True):
    """What sealing a sibling records; every field is required (a default once hid a lost mask)."""

    key: AttemptKey
    digest: str
    """Digest of the row (see `outlast.rows.row_digest`)."""
    reward: float
    """Raw reward, as the environment returned it."""
    prompt_tokens: int
    response_tokens: int
    min_version: TrainerVersion
    max_version: TrainerVersion
    truncated: bool
    mask_sample: bool
    """True when the sample must not contribute to the loss."""


class Attempt(_Record, frozen=True, kw_only=True):
    """One physical try of a sibling."""

    key: AttemptKey
    state: AttemptState
    version: TrainerVersion
    """Engine version at dispatch (at reservation until then)."""


class Sibling(_Record, frozen=True, kw_only=True):
    """One logical response slot of a group. Only `attempt` may fill it."""

    index: SiblingIndex
    attempt: Attempt
    receipt: Receipt | None
    """Present exactly when the current attempt is SEALED."""
    infrastructure_failures: int
    data_failures: int
    abrupt_ends: int
    """Times in a row that the controller died while this sibling was in flight."""

    @property
    def version(self) -> TrainerVersion:
        """Oldest weight version this sibling depends on, in trainer versions."""
        return self.attempt.version if self.receipt is None else self.receipt.min_version

    @property
    def sealed(self) -> bool:
        return self.receipt is not None


class Group(_Record, frozen=True, kw_only=True):
    """One drawn prompt and everything known about its responses."""

    id: GroupId
    prompt: PromptRef
    state: GroupState
    level: RecoveryLevel
    """Resolved at draw time; a restart with another config does not reinterpret it."""
    siblings: tuple[Sibling, ...]
    target_step: Step | None
    """Stamp of the sampler; changes only by `promote`."""
    step: Step | None
    """The step of CLAIMED, APPLIED, REPLAY and TRAINED; None elsewhere."""
    position: int | None
    """Place in buffer order, given at commit and kept by a claim that comes back."""
    trained_rewards: tuple[float, ...]
    """Shaped reward per sibling, written at COMPLETE -> BUFFERED; empty before."""
    keep: tuple[bool, ...]
    """Whether each sibling takes part in training; empty before COMPLETE -> BUFFERED."""
    dropped: DropReason | None

    @property
    def version(self) -> TrainerVersion:
        """w: minimum over kept tokens and over the dispatch version of attempts without any."""
        return min(sibling.version for sibling in self.siblings)

    @property
    def holds_permit(self) -> bool:
        return self.state in PERMIT_STATES

    @property
    def all_sealed(self) -> bool:
        return all(sibling.sealed for sibling in self.siblings)

    def receipts(self) -> tuple[Receipt, ...]:
        """Receipts of the sealed siblings, by sibling index."""
        return tuple(s.receipt for s in self.siblings if s.receipt is not None)


class DrawnPrompt(_Record, frozen=True, kw_only=True):
    """A prompt that was drawn and is held back in the replacement reserve."""

    id: GroupId
    prompt: PromptRef


class StepRecord(_Record, frozen=True, kw_only=True):
    """What one optimizer step consumed and gave: enough to re-execute and to audit it."""

    step: Step
    groups: tuple[GroupId, ...]
    """In training order."""
    chunks: tuple[int, ...]
    """Groups per accumulate call, in order; sums to len(groups)."""
    rows: tuple[str, ...]
    """Digests of all rows, by (group order, sibling)."""
    history: str
    """Running digest up to and including this step."""
    outcome: dict[str, float]
    """Scalars recorded at finish (loss, grad_norm, ...)."""
