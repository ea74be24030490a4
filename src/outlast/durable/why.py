"""Why a cut can or cannot be restored under a recipe, and what to do about it.

The verdict is the planner's own (`judge_cut`, `plan_restore`), the differences are those of
`fingerprint.compare`. Read-only. May import: `durable`, `model`, `errors`.
"""

from __future__ import annotations

import sys
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.files import Files
from outlast.durable.fingerprint import Change, Fingerprint, compare
from outlast.durable.forkcut import KEPT
from outlast.durable.inspection import CutReader
from outlast.durable.manifest import CutState, FoundCut, RunListing
from outlast.durable.restore import (
    Fresh,
    Rejected,
    Rejection,
    RestoreMode,
    Resume,
    judge_cut,
    plan_restore,
)
from outlast.errors import CorruptData, RefusedState
from outlast.model.cut import AnchorKind


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One field that the cut and the recipe disagree on."""

    dotpath: str
    kind: str
    """semantic or training."""
    stored: str
    now: str
    accepted: bool
    remedy: str


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast snapshots why ID`."""

    id: str
    state: CutState
    restorable: bool
    """Whether a start under this recipe could go on from this cut."""
    chosen: str | None
    """The cut that a start under this recipe would go on from now; None when it would refuse, or
    begin anew."""
    reasons: tuple[str, ...]
    """What stands in the way; of a restorable cut, why another one would be used."""
    differences: tuple[FieldDifference, ...]
    remedy: tuple[str, ...]
    anchor: str | None
    steps_to_replay: int | None


def why(
    files: Files,
    run_dir: PurePosixPath,
    *,
    listing: RunListing,
    found: FoundCut,
    fingerprint: Fingerprint,
    mode: RestoreMode,
) -> Why:
    """Judge `found` under a recipe. Raises UnsupportedFormat or DiskError."""
    reader = CutReader(files, run_dir)
    outcome = judge_cut(
        listing,
        found,
        fingerprint=fingerprint,
        inspect=reader.inspector,
        max_replay_steps=sys.maxsize,
    )
    chosen, refusal = _chosen(listing, fingerprint, mode=mode, reader=reader)
    resumes = isinstance(outcome, Resume)
    differences = _differences(reader, found, fingerprint=fingerprint, outcome=outcome)
    name = found.path.name
    reasons: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    if isinstance(outcome, Rejected):
        reasons = (f"{outcome.why}: {outcome.reason}",)
        remedy = _remedies(outcome, found, differences=differences, chosen=chosen)
    elif chosen != name:
        used = f"a start would go on from {chosen}, which is newer" if chosen else str(refusal)
        reasons = (used,)
        remedy = (f"to go on from {name} instead: {_fork(name)}",)
    return Why(
        id=name,
        state=_state(outcome),
        restorable=resumes,
        chosen=chosen,
        reasons=reasons,
        differences=differences,
        remedy=remedy,
        anchor=str(outcome.anchor) if isinstance(outcome, Resume) else None,
        steps_to_replay=outcome.steps_to_replay if isinstance(outcome, Resume) else None,
    )


def _state(outcome: Resume | Rejected) -> CutState:
    if isinstance(outcome, Resume) or outcome.why is Rejection.INCOMPATIBLE:
        return CutState.VALID
    return CutState.FOREIGN if outcome.why is Rejection.FOREIGN else CutState.CORRUPT


def _chosen(
    listing: RunListing, fingerprint: Fingerprint, *, mode: RestoreMode, reader: CutReader
) -> tuple[str | None, str | None]:
    """(the cut a start would use, why it would use none)."""
    try:
        plan = plan_restore(
            listing,
            mode=mode,
            fingerprint=fingerprint,
            inspect=reader.inspector,
            max_replay_steps=sys.maxsize,
        )
    except RefusedState as error:
        return None, f"a start would refuse: {error}"
    return (None, plan.reason) if isinstance(plan, Fresh) else (plan.cut.path.name, None)


def _differences(
    reader: CutReader,
    found: FoundCut,
    *,
    fingerprint: Fingerprint,
    outcome: Resume | Rejected,
) -> tuple[FieldDifference, ...]:
    """Of a cut whose bytes prove whole; a foreign one is compared as well."""
    if found.manifest is None or reader.inspector.verify(found) is not None:
        return ()
    replay = outcome.steps_to_replay if isinstance(outcome, Resume) else None
    if replay is None:
        replay = found.manifest.trainer_version - found.manifest.anchor.version
    try:
        stored = reader.inspector.fingerprint(found)
    except CorruptData:
        return ()
    return tuple(map(_difference, compare(stored, fingerprint, steps_to_replay=replay).changes))


def _difference(change: Change) -> FieldDifference:
    return FieldDifference(
        dotpath=change.dotpath,
        kind=change.kind,
        stored=change.old,
        now=change.new,
        accepted=not change.refused,
        remedy=change.remedy,
    )


def _fork(name: str, *, options: str = "") -> str:
    return f"outlast fork RUN --at {name} NEW_DIR{options}"


def _remedies(
    rejected: Rejected,
    found: FoundCut,
    *,
    differences: tuple[FieldDifference, ...],
    chosen: str | None,
) -> tuple[str, ...]:
    name, refused = found.path.name, [d for d in differences if not d.accepted]
    if rejected.why is Rejection.CORRUPT:
        back = f"bring {name} back from a backup; nothing in the run can repair it"
        return (back, *([f"a start goes on from {chosen} instead"] if chosen else ()))
    if rejected.why is Rejection.FOREIGN:
        if rejected.reason.startswith("of another run"):
            return ("use it in the run it belongs to",)
        return (f"{_fork(name)}: a new run goes on from it",)
    if not refused:
        return ("bring its anchor back from a backup, or use another cut",)
    undo = tuple(f"{d.dotpath}: {d.remedy}" for d in refused)
    at = _forkable(found)
    if at is None or any(d.dotpath in KEPT for d in refused):
        return (*undo, "or start a new run under this recipe")
    fork = _fork(at, options=" --without-rollouts --recipe RECIPE")
    return (*undo, f"or {fork}: keeps weights and cursor, generates the rest under this recipe")


def _forkable(found: FoundCut) -> str | None:
    """The trainer checkpoint whose weights a fork without rollouts keeps; None for bootstrap."""
    if found.manifest is None or found.manifest.anchor.kind is AnchorKind.BOOTSTRAP:
        return None
    return names.checkpoint(found.manifest.anchor.version)
