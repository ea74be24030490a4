"""The restore planner: from what stands on disk to a plan, or to a refusal that says why.

Pure: payload checks and fingerprints come through callbacks, newest candidate first, and nothing
is ever changed (P4). A cut is used when it is on the lineage, whole, anchored to whole trainer
state of its own history, and made under an accepted fingerprint; else it is noted and the next
older one is tried. State that exists and cannot be used is refused, never started over.
May import: `durable.{ancestry,fingerprint,manifest}`, `model`, `errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath

from outlast.durable.ancestry import of_another_run, why_foreign
from outlast.durable.fingerprint import Change, Fingerprint, Verdict, compare
from outlast.durable.manifest import FoundCut, Manifest, RunListing, TreeKind, require_format
from outlast.errors import CorruptData, FingerprintMismatch, ForeignRun, NotRestorable
from outlast.model.cut import GENESIS, Anchor, AnchorKind
from outlast.model.ids import TrainerVersion


class RestoreMode(StrEnum):
    """`rollout_checkpointing.restore_mode`."""

    LATEST = "latest"
    TRAINER_CHECKPOINT = "trainer_checkpoint"


class Rejection(StrEnum):
    """Why a cut was passed over."""

    CORRUPT = "corrupt"
    FOREIGN = "foreign"
    INCOMPATIBLE = "incompatible"
    """Whole and ours, but its anchor or its fingerprint does not fit."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """One cut that was passed over."""

    path: PurePosixPath
    why: Rejection
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.why}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fresh:
    """Start from the initial model."""

    reason: str
    rejected: tuple[Rejected, ...] = ()
    """Trees of other runs; left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Continue from a cut."""

    cut: FoundCut
    manifest: Manifest
    anchor: Anchor
    """Trainer state to load: the newest whole one of the cut's own history."""
    anchor_tree: FoundCut | None
    """None for the bootstrap anchor; the cut itself for a bundled cut."""
    steps_to_replay: int
    """Always 0 under anchor policy `exact`."""
    changes: tuple[Change, ...]
    """TRAINING fields that changed and were accepted."""
    rejected: tuple[Rejected, ...]
    ignored: tuple[PurePosixPath, ...]
    """Newer snapshots that the mode leaves aside; kept."""


Plan = Fresh | Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspector:
    """How the planner looks into a tree. Both may raise DiskError, which stops the start."""

    verify: Callable[[FoundCut], str | None]
    """Check every byte; say what is wrong, or None."""
    fingerprint: Callable[[FoundCut], Fingerprint]
    """Read the stored projection. Raises CorruptData."""
    histories: Callable[[FoundCut], Mapping[int, str]] = lambda found: {}
    """History at each step that a verified cut would replay, by trainer version."""


def plan_restore(
    listing: RunListing,
    *,
    mode: RestoreMode,
    fingerprint: Fingerprint,
    inspect: Inspector,
    fresh: bool = False,
    max_replay_steps: int = 0,
) -> Plan:
    """Decide how to start in this directory under the current `fingerprint`.

    Raises ForeignRun, UnsupportedFormat, NotRestorable or FingerprintMismatch; CorruptData never.
    """
    if fresh:
        _require_empty(listing)
        return Fresh(reason="--fresh into an empty directory")
    _require_own(listing)
    search = _Search(listing, mode, fingerprint, inspect, max_replay_steps)
    return search.plan()


def judge_cut(
    listing: RunListing,
    cut: FoundCut,
    *,
    fingerprint: Fingerprint,
    inspect: Inspector,
    max_replay_steps: int = 0,
    off_lineage: bool = False,
) -> Resume | Rejected:
    """What `plan_restore` would make of this one cut, were it the only candidate.

    With `off_lineage` a cut that no later life continued is judged like any other (for `fork`).
    Raises UnsupportedFormat or DiskError.
    """
    search = _Search(listing, RestoreMode.LATEST, fingerprint, inspect, max_replay_steps)
    readable = {found.path for found, _ in search.readable()}
    noted = next((r for r in search.rejected if r.path == cut.path), None)
    ours = cut.manifest is not None and not of_another_run(listing, cut.manifest)
    foreign = off_lineage and ours and noted is not None and noted.why is Rejection.FOREIGN
    if cut.manifest is not None and (foreign or cut.path in readable):
        search.rejected.clear()
        return search.judged(cut, cut.manifest)
    return noted or Rejected(cut.path, Rejection.CORRUPT, "it is not listed")


@dataclass(slots=True)
class _Search:
    """One pass over the candidates, newest first, noting why each was passed over."""

    listing: RunListing
    mode: RestoreMode
    current: Fingerprint
    inspect: Inspector
    max_replay_steps: int
    rejected: list[Rejected] = field(default_factory=list)
    mismatch: tuple[FoundCut, Verdict] | None = None
    """The newest candidate that only the fingerprint stands against."""
    verified: dict[PurePosixPath, str | None] = field(default_factory=dict)

    def plan(self) -> Plan:
        ours = self.readable()
        ignored: list[PurePosixPath] = []
        for cut, manifest in ours:
            if self.mode is RestoreMode.TRAINER_CHECKPOINT and cut.kind is TreeKind.SNAPSHOT:
                ignored.append(cut.path)
                continue
            found = self.judged(cut, manifest, ignored=tuple(ignored))
            if isinstance(found, Resume):
                return found
            self.rejected.append(found)
        return self._without_cut(ours)

    def readable(self) -> list[tuple[FoundCut, Manifest]]:
        """Cuts on the lineage with a readable manifest, newest first; the others are noted."""
        found: list[tuple[FoundCut, Manifest]] = []
        for cut in self.listing.cuts:
            if cut.manifest is None or cut.defect is not None:
                reason = cut.defect or "its manifest is unreadable"
                self.rejected.append(Rejected(cut.path, Rejection.CORRUPT, reason))
                continue
            require_format(cut.manifest.format, where=str(cut.path))
            foreign = why_foreign(self.listing, cut.manifest)
            defect = _misnamed(cut, cut.manifest)
            if foreign is not None:
                self.rejected.append(Rejected(cut.path, Rejection.FOREIGN, foreign))
            elif defect is not None:
                self.rejected.append(Rejected(cut.path, Rejection.CORRUPT, defect))
            else:
                found.append((cut, cut.manifest))
        return sorted(found, key=lambda pair: pair[1].sequence, reverse=True)

    def judged(
        self, cut: FoundCut, manifest: Manifest, *, ignored: tuple[PurePosixPath, ...] = ()
    ) -> Resume | Rejected:
        """The resume that `cut` allows, or why it allows none."""
        defect = self._verify(cut)
        if defect is not None:
            return Rejected(cut.path, Rejection.CORRUPT, defect)
        anchored = self._anchor(cut, manifest)
        if isinstance(anchored, str):
            return Rejected(cut.path, Rejection.INCOMPATIBLE, anchored)
        anchor, tree = anchored
        replay = manifest.trainer_version - anchor.version
        try:
            verdict = self._judge(cut, manifest, replay=replay)
        except CorruptData as error:
            return Rejected(cut.path, Rejection.CORRUPT, str(error))
        if not verdict.accepted:
            self.mismatch = self.mismatch or (cut, verdict)
            paths = ", ".join(change.dotpath for change in verdict.refused)
            return Rejected(cut.path, Rejection.INCOMPATIBLE, f"made under another recipe: {paths}")
        return Resume(
            cut=cut,
            manifest=manifest,
            anchor=anchor,
            anchor_tree=tree,
            steps_to_replay=replay,
            changes=verdict.changes,
            rejected=tuple(self.rejected),
            ignored=ignored,
        )

    def _judge(self, cut: FoundCut, manifest: Manifest, *, replay: int) -> Verdict:
        if manifest.fingerprint == self.current.digest:
            return Verdict(changes=())
        stored = self.inspect.fingerprint(cut)
        if stored.digest != manifest.fingerprint:
            raise CorruptData(
                f"its fingerprint.json has digest {stored.digest[:12]}, its manifest says "
                f"{manifest.fingerprint[:12]}"
            )
        return compare(stored, self.current, steps_to_replay=replay)

    def _anchor(self, cut: FoundCut, manifest: Manifest) -> tuple[Anchor, FoundCut | None] | str:
        """Trainer state to load for `cut`, or why there is none."""
        if cut.kind is TreeKind.TRAINER_CHECKPOINT:
            return _checkpoint_anchor(manifest.trainer_version, manifest.history), cut
        at, base = manifest.trainer_version, manifest.anchor
        if at == base.version:
            return self._base(base)
        histories = {**self.inspect.histories(cut), int(at): manifest.history}
        exact = ""
        for step, history in sorted(histories.items(), reverse=True):  # newest M, A < M <= V
            version = TrainerVersion(step)
            tree = self._tree(version, history) if base.version < version <= at else ""
            if not isinstance(tree, str):
                return _checkpoint_anchor(version, history), tree
            exact = exact or tree
        steps = at - base.version
        if steps > self.max_replay_steps:
            most = f"at most {self.max_replay_steps} are allowed"
            return f"{exact}, and from {base} {steps} steps would have to be replayed ({most})"
        return self._base(base)

    def _base(self, anchor: Anchor) -> tuple[Anchor, FoundCut | None] | str:
        if anchor.kind is AnchorKind.CHECKPOINT:
            tree = self._tree(anchor.version, anchor.history)
            return tree if isinstance(tree, str) else (anchor, tree)
        bootstrap, identities = self.listing.bootstrap, self.current.identities
        if bootstrap is None:
            return "its anchor bootstrap/anchor.json is missing or unreadable"
        require_format(bootstrap.format, where="bootstrap/anchor.json")
        if (bootstrap.model, bootstrap.tokenizer) != (identities.model, identities.tokenizer):
            return (
                f"bootstrap/anchor.json names model {bootstrap.model[:12]} and tokenizer "
                f"{bootstrap.tokenizer[:12]}; given are {identities.model[:12]} and "
                f"{identities.tokenizer[:12]}"
            )
        return anchor, None

    def _tree(self, version: TrainerVersion, history: str) -> FoundCut | str:
        """The whole trainer checkpoint of that version and history, or what is wrong with it."""
        name = f"step_{version}"
        trees = (c for c in self.listing.cuts if c.kind is TreeKind.TRAINER_CHECKPOINT)
        tree = next((cut for cut in trees if cut.number == version), None)
        if tree is None:
            return f"its anchor {name} does not exist"
        if tree.manifest is None or tree.defect is not None:
            return f"its anchor {name} is corrupt: {tree.defect or 'unreadable manifest'}"
        if of_another_run(self.listing, tree.manifest):
            return f"its anchor {name} is of another run ({tree.manifest.run})"
        if tree.manifest.history != history:
            return (
                f"its anchor {name} has history {tree.manifest.history[:12]}, "
                f"required {history[:12]}"
            )
        defect = self._verify(tree)
        return tree if defect is None else f"its anchor {name} is corrupt: {defect}"

    def _verify(self, cut: FoundCut) -> str | None:
        if cut.path not in self.verified:
            self.verified[cut.path] = self.inspect.verify(cut)
        return self.verified[cut.path]

    def _without_cut(self, ours: list[tuple[FoundCut, Manifest]]) -> Fresh:
        """No cut can be used: start fresh where nothing was ever published, else refuse."""
        if self.mismatch is not None:
            cut, verdict = self.mismatch
            others = [r for r in self.rejected if r.path != cut.path]
            raise FingerprintMismatch(verdict.message(where=str(cut.path)) + _listed(others))
        published = _published(self.listing)
        if published is None:
            return Fresh(reason=_NEVER_PUBLISHED, rejected=tuple(self.rejected))
        snapshots = [cut for cut, _ in ours if cut.kind is TreeKind.SNAPSHOT]
        if self.mode is RestoreMode.TRAINER_CHECKPOINT and snapshots:
            raise NotRestorable(
                f"restore_mode trainer_checkpoint found no usable trainer checkpoint, but "
                f"{len(snapshots)} snapshot(s) that it would discard. Nothing was changed. Use "
                f"rollout_checkpointing.restore_mode: latest, or choose a new directory."
                f"{_listed(self.rejected)}"
            )
        raise NotRestorable(
            f"{published}, and no cut of this run can be used. Nothing was changed, and nothing "
            "is started over existing state. Repair or bring back what is named below, or choose "
            f"a new run directory.{_listed(self.rejected)}"
        )


_NEVER_PUBLISHED = (
    "this run has never published a cut: its incarnations left no trained step and no finished "
    "rollout that anything on disk refers to, so starting from the initial model repeats nothing"
)


def _published(listing: RunListing) -> str | None:
    """The evidence that this run once published a cut; None when it never did."""
    for cut in listing.cuts:
        if cut.manifest is None or not of_another_run(listing, cut.manifest):
            return f"{cut.path} exists"
    for path in listing.debris:
        if path.name.startswith("trash_"):
            return f"{path} was published once"
    for record in listing.incarnations:
        if record.restored_from is not None:
            return f"incarnation {record.number} restored cut {record.restored_from}"
    for end in listing.ends:
        if end.last_cut is not None:
            return f"incarnation {end.number} published cut {end.last_cut}"
    return None


def _require_empty(listing: RunListing) -> None:
    held = [
        name
        for name, present in (
            ("run.json", listing.run),
            ("incarnations/", listing.incarnations),
            ("bootstrap/", listing.bootstrap),
            *((str(cut.path), True) for cut in listing.cuts),
            *((str(path), True) for path in listing.debris),
            *((name, True) for name in listing.strangers),
        )
        if present
    ]
    if held:
        raise NotRestorable(
            f"--fresh: the directory holds {_some(held)}; required: an empty directory. Nothing "
            "was changed. Choose a new directory, or leave --fresh out to continue this run."
        )


def _require_own(listing: RunListing) -> None:
    if listing.run is not None:
        require_format(listing.run.format, where="run.json")
        return
    held = [*listing.strangers, *(str(cut.path) for cut in listing.cuts)]
    if held:
        raise ForeignRun(
            f"the directory has no run.json, but holds {_some(held)}; required: a run directory "
            "or an empty one. Nothing was changed. Choose a new directory, or bring run.json back."
        )


def _misnamed(cut: FoundCut, manifest: Manifest) -> str | None:
    """A manifest that does not belong under its name, or contradicts itself."""
    snapshot = cut.kind is TreeKind.SNAPSHOT
    number = manifest.sequence if snapshot else manifest.trainer_version
    if (manifest.kind, number) != (cut.kind, cut.number):
        return f"its manifest is of {manifest.kind} {number}"
    anchor = manifest.anchor
    itself = _checkpoint_anchor(manifest.trainer_version, manifest.history)
    if not snapshot:
        return None if anchor == itself else f"its manifest says that its anchor is {anchor}"
    if anchor.version > manifest.trainer_version:
        return f"trainer version {manifest.trainer_version} lies below its anchor {anchor}"
    if anchor.version == manifest.trainer_version and anchor.history != manifest.history:
        return f"its history differs from its anchor's at trainer version {anchor.version}"
    bootstrap = anchor.kind is AnchorKind.BOOTSTRAP
    if bootstrap and (anchor.version, anchor.history) != (0, GENESIS):
        return f"its bootstrap anchor claims trainer version {anchor.version} and a history"
    return None


def _checkpoint_anchor(version: TrainerVersion, history: str) -> Anchor:
    return Anchor(kind=AnchorKind.CHECKPOINT, version=version, history=history)


def _listed(rejected: Iterable[Rejected]) -> str:
    return "".join(f"\n  {line}" for line in rejected)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
