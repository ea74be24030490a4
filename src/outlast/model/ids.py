"""Typed identifiers. Distinct types, so that a group id cannot be passed where a step is meant.

Counting: a *step* is named by the trainer version it produces, so step 1 turns version 0 into
version 1, checkpoint ``step_12`` holds version 12, and a group with target step t is trained while
the trainer is at version t - 1.
"""

from __future__ import annotations

from typing import NewType

import msgspec

GroupId = NewType("GroupId", int)
"""Draw-ordered id of a prompt group, from 0; unique along a lineage."""
SiblingIndex = NewType("SiblingIndex", int)
"""Slot of a response inside its group, from 0."""
Incarnation = NewType("Incarnation", int)
"""One life of the controller on a run directory, from 1; never reused; the fencing token."""
TrainerVersion = NewType("TrainerVersion", int)
"""Completed optimizer steps."""
Step = NewType("Step", int)
"""An optimizer step, named by the trainer version it produces (from 1)."""
Sequence = NewType("Sequence", int)
"""Order of cuts within a run, from 1; never reused."""


class AttemptKey(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """One physical try to fill one sibling; also the key of its row in the data plane."""

    group: GroupId
    sibling: SiblingIndex
    incarnation: Incarnation
    n: int
    """Number of the attempt within (group, sibling, incarnation), from 0."""

    def __str__(self) -> str:
        return f"g{self.group}.s{self.sibling}.i{self.incarnation}.n{self.n}"


class WeightVersion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an engine serves: between processes versions are only equal as pairs."""

    incarnation: Incarnation
    version: TrainerVersion

    def __str__(self) -> str:
        return f"i{self.incarnation}/v{self.version}"


def next_step(version: TrainerVersion) -> Step:
    """The step that an idle trainer at `version` would run next."""
    return Step(version + 1)


def version_after(step: Step) -> TrainerVersion:
    """The trainer version that `step` produces."""
    return TrainerVersion(int(step))
