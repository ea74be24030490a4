"""What becomes of a cut in a fork: pure functions on cuts.

`rebased` moves a cut onto newer trainer state of its own history. `reopened` keeps weights and
cursor and lets go of every rollout: the outstanding prompts become the reserve, which admission
draws from first, so that any sampler, batch size or environment can take them up in draw order.
Keeps S4 (no prompt skipped or repeated). May import: `fingerprint`, `model`, `errors`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from outlast.durable.fingerprint import Fingerprint, compare
from outlast.errors import FingerprintMismatch, NotRestorable
from outlast.model.cut import Anchor, Cut, SamplerState
from outlast.model.groups import DrawnPrompt, Group, GroupState

KEPT = ("identity.model", "identity.tokenizer", "identity.dataset", "seed")
"""Differences that no fork survives: weights and cursor mean something else under them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The recipe under which a fork without rollouts goes on."""

    fingerprint: Fingerprint
    recipe: bytes
    """Text of recipe.yaml."""
    sampler: str
    """Name of the sampler, as its state carries it."""
    prompts_per_step: int


def rebased(cut: Cut, anchor: Anchor) -> Cut:
    """`cut` on the durable trainer state `anchor` of its own history, at or above its own anchor.

    Groups that the anchor's steps trained leave the ledger; the consumption log knows them.
    """
    if cut.anchor == anchor:
        return cut
    kept = tuple(group for group in cut.groups if not _trained(group, anchor))
    trained = cut.settled.trained + len(cut.groups) - len(kept)
    return msgspec.structs.replace(
        cut,
        groups=kept,
        settled=msgspec.structs.replace(cut.settled, trained=trained),
        applied_steps=tuple(r for r in cut.applied_steps if r.step > anchor.version),
        anchor=anchor,
    )


def _trained(group: Group, anchor: Anchor) -> bool:
    applied = group.state is GroupState.APPLIED
    return applied and group.step is not None and group.step <= anchor.version


def reopened(cut: Cut, terms: Terms, *, stored: Fingerprint, name: str) -> Cut:
    """`cut` without rollouts, under `terms`.

    Raises NotRestorable when steps would have to be replayed, which takes rows, and
    FingerprintMismatch when `terms` change what weights and cursor refer to.
    """
    if cut.applied_steps:
        steps = [int(record.step) for record in cut.applied_steps]
        raise NotRestorable(
            f"{name}: the weights of steps {steps[0]} to {steps[-1]} are in no trainer checkpoint "
            f"and would be made again from stored rows; --without-rollouts drops those. Nothing "
            f"was changed. Fork at a trainer checkpoint (step_N), or with rollouts."
        )
    verdict = compare(stored, terms.fingerprint, steps_to_replay=0)
    lost = [change for change in verdict.changes if change.dotpath in KEPT]
    if lost:
        lines = "\n  ".join(f"{c.dotpath}: {c.old} -> {c.new}" for c in lost)
        raise FingerprintMismatch(
            f"{name}: a fork keeps weights and cursor, and these give them another meaning "
            f"(stored -> now). Nothing was changed.\n  {lines}\nSet them back, or start a new run."
        )
    outstanding = [DrawnPrompt(id=group.id, prompt=group.prompt) for group in cut.groups]
    version = int(cut.trainer_version)
    return msgspec.structs.replace(
        cut,
        groups=(),
        prefixes=(),
        reserve=tuple(sorted([*outstanding, *cut.reserve], key=lambda spare: spare.id)),
        sampler=SamplerState(
            name=terms.sampler,
            admitted=version * terms.prompts_per_step,
            credited=0,
            batches=version,
            own={},
        ),
        shortfalls={},
        owed={},
    )
