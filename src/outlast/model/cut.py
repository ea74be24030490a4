"""The cut: every restart-facing value at one instant, and its self-check.

One synchronous call of `state.RecoveryState.cut` makes it: dictionaries are copied, records are
not. Laws: S4 (no prompt skipped or repeated), S5 (permits), S6 (the cut agrees with itself).
May import: `ids`, `groups`, `cursor`.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec

from outlast.errors import InvariantError
from outlast.model.cursor import CursorState, DatasetOrder
from outlast.model.groups import (
    DrawnPrompt,
    Group,
    GroupState,
    PromptRef,
    RecoveryLevel,
    StepRecord,
)
from outlast.model.ids import AttemptKey, GroupId, Incarnation, Sequence, Step, TrainerVersion

GENESIS = "0" * 64
"""History before the first step."""


class AnchorKind(StrEnum):
    """What durable trainer state a cut started from."""

    BOOTSTRAP = "bootstrap"
    CHECKPOINT = "checkpoint"


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class Anchor(_Record, frozen=True, kw_only=True):
    """The durable trainer state a cut started from: the initial model, or ``step_N``."""

    kind: AnchorKind
    version: TrainerVersion
    history: str
    """History digest at that version."""

    def __str__(self) -> str:
        return "bootstrap" if self.kind is AnchorKind.BOOTSTRAP else f"step_{self.version}"


class SamplerState(_Record, frozen=True, kw_only=True):
    """Restart-facing counters of the sampler: state cannot migrate across samplers."""

    name: str
    admitted: int
    """Groups admitted along the lineage."""
    credited: int
    """Admissions given back: groups filtered, evicted, aborted or given up."""
    batches: int
    """Batches stamped by a stamping sampler; the next one gets target step batches + 1."""
    own: dict[str, int | float | str | bool]
    """JSON state of a custom sampler."""


class SettledCounts(_Record, frozen=True, kw_only=True):
    """How many drawn prompts have left the ledger, by outcome."""

    trained: int
    dropped: dict[str, int]
    """By DropReason."""

    @property
    def total(self) -> int:
        return self.trained + sum(self.dropped.values())


class LogPosition(_Record, frozen=True, kw_only=True):
    """How far the consumption log of an incarnation belongs to a cut."""

    incarnation: Incarnation
    length: int
    """Bytes."""
    digest: str
    """Running sha256 over those bytes."""


class PrefixRef(_Record, frozen=True, kw_only=True):
    """Tokens that an unfinished attempt had received at the cut; they are never decoded again."""

    key: AttemptKey
    tokens: int


class Cut(_Record, frozen=True, kw_only=True):
    """One consistent image of the rollout side. Rows are in the plane's handle beside it."""

    sequence: Sequence
    incarnation: Incarnation
    parent: Sequence | None
    """The cut before this one on the lineage."""
    anchor: Anchor
    trainer_version: TrainerVersion
    history: str
    log: LogPosition
    dataset_size: int
    dataset_seed: int
    """Root seed of the dataset order."""
    cursor: CursorState
    groups: tuple[Group, ...]
    """All unsettled groups, by id."""
    reserve: tuple[DrawnPrompt, ...]
    sampler: SamplerState
    settled: SettledCounts
    prefixes: tuple[PrefixRef, ...]
    """Of attempts in flight whose decoded tokens are saved beside this state."""
    applied_steps: tuple[StepRecord, ...]
    """Steps above the anchor, in order: APPLIED up to the trainer version, REPLAY above it."""
    shortfalls: dict[str, int]
    """Target step -> prompts given up for good, which the step must not wait for."""
    owed: dict[str, int]
    """Target step -> replacements it is still owed by later draws."""
    skipped_prompts: int
    consecutive_dropped: int
    next_position: int
    """Next place in buffer order."""
    last_done: dict[str, int]
    """Periodic duty -> trainer version at which it was last done."""
    tokens_per_s: float
    """Recent decode rate, for the restore report's estimate; 0 when unknown."""
    metrics: dict[str, dict[str, float]]
    """Trainer version -> metrics that retention by metric uses."""

    @property
    def row_keys(self) -> frozenset[AttemptKey]:
        """Keys of every row that the cut names."""
        return frozenset(r.key for group in self.groups for r in group.receipts())

    @property
    def drawn(self) -> int:
        """Prompts drawn from the dataset along the lineage."""
        return self.cursor.drawn

    def counts(self) -> Counter[GroupState]:
        """Unsettled groups by state."""
        return Counter(group.state for group in self.groups)


def covered(cut: Cut) -> Cut:
    """The cut as it is once its own trainer version is durable: what a trainer checkpoint bundles.

    Groups that its steps trained leave the ledger, so their rows are not saved again.
    """
    kept = tuple(group for group in cut.groups if group.state is not GroupState.APPLIED)
    later = tuple(r for r in cut.applied_steps if r.step > cut.trainer_version)
    trained = cut.settled.trained + len(cut.groups) - len(kept)
    return msgspec.structs.replace(
        cut,
        groups=kept,
        settled=msgspec.structs.replace(cut.settled, trained=trained),
        applied_steps=later,
        anchor=Anchor(kind=AnchorKind.CHECKPOINT, version=cut.trainer_version, history=cut.history),
    )


def check_cut(cut: Cut, order: DatasetOrder) -> None:
    """S4 and S6 on a cut's own content. Raises InvariantError naming the first contradiction."""
    ids = [group.id for group in cut.groups] + [spare.id for spare in cut.reserve]
    _require(len(set(ids)) == len(ids), "S4: a group id stands twice in the cut")
    total = len(ids) + cut.settled.total
    _require(
        cut.drawn == total,
        f"S4: {cut.drawn} prompts drawn, but {len(cut.groups)} live + {len(cut.reserve)} reserve "
        f"+ {cut.settled.total} settled = {total}",
    )
    held: list[tuple[GroupId, PromptRef]] = [(g.id, g.prompt) for g in cut.groups]
    held += [(spare.id, spare.prompt) for spare in cut.reserve]
    for group_id, prompt in held:
        expected = order.at(group_id)
        found = (prompt.epoch, prompt.index)
        _require(found == expected, f"S4: group {group_id} holds prompt {found}, not {expected}")
    positions = [g.position for g in cut.groups if g.position is not None]
    _require(len(set(positions)) == len(positions), "S6: two groups share a buffer position")
    for group in cut.groups:
        check_group(group)
    _check_prefixes(cut)
    _check_steps(cut)


def check_group(group: Group) -> None:
    """S6 within one record. Raises InvariantError naming the group."""
    where = f"S6: group {group.id} is {group.state}"
    _require(group.state not in (GroupState.TRAINED, GroupState.DROPPED), f"{where}, yet unsettled")
    stepped = group.state in (GroupState.CLAIMED, GroupState.APPLIED, GroupState.REPLAY)
    _require(stepped == (group.step is not None), f"{where} with step {group.step}")
    if group.state is not GroupState.OPEN:
        _require(group.all_sealed, f"{where} with an unsealed sibling")
    for slot, sibling in enumerate(group.siblings):
        _require(sibling.index == slot, f"{where}: sibling {sibling.index} stands in slot {slot}")
        if sibling.receipt is not None:
            same = sibling.receipt.key == sibling.attempt.key
            _require(same, f"{where}: sibling {slot} holds the receipt of another attempt")
    shaped = group.state not in (GroupState.OPEN, GroupState.COMPLETE)
    width = len(group.siblings) if shaped else 0
    _require(len(group.trained_rewards) == width, f"{where} with {group.trained_rewards} rewards")
    _require(len(group.keep) == width, f"{where} with {len(group.keep)} keep flags")
    _require(shaped == (group.position is not None), f"{where} at position {group.position}")


def _check_prefixes(cut: Cut) -> None:
    """A prefix belongs to the current attempt of an unsealed sibling that keeps its tokens."""
    growing = {
        sibling.attempt.key
        for group in cut.groups
        if group.level is RecoveryLevel.TOKEN
        for sibling in group.siblings
        if not sibling.sealed
    }
    for prefix in cut.prefixes:
        _require(
            prefix.key in growing and prefix.tokens > 0,
            f"S3: {prefix.tokens} prefix tokens of {prefix.key}, which is not in progress",
        )


def _check_steps(cut: Cut) -> None:
    """Records and groups of the steps above the anchor say the same, without a gap."""
    held: dict[tuple[Step, GroupState], list[GroupId]] = {}
    for group in cut.groups:
        if group.state in (GroupState.APPLIED, GroupState.REPLAY) and group.step is not None:
            held.setdefault((group.step, group.state), []).append(group.id)
    top = cut.trainer_version
    recorded = {
        (r.step, GroupState.APPLIED if r.step <= top else GroupState.REPLAY): sorted(r.groups)
        for r in cut.applied_steps
    }
    found = {key: sorted(ids) for key, ids in held.items()}
    _require(found == recorded, f"S1: applied groups {found} differ from step records {recorded}")
    steps = [int(record.step) for record in cut.applied_steps]
    first = int(cut.anchor.version) + 1
    _require(
        steps == list(range(first, first + len(steps))) and len(steps) >= top - first + 1,
        f"S1: applied steps {steps} do not lead from {cut.anchor} to version {top}",
    )
    at = {int(record.step): record.history for record in cut.applied_steps}
    history = at.get(int(top), cut.anchor.history)
    _require(history == cut.history, "S7: the history of the last step is not the cut's")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)
