"""The auditor's own books over the lives of a run, kept outside of the killed process.

Before every restart it reads what stands on disk; afterwards it compares that with what the tape
of the life says. Laws: S1, S2, S7 along the lineage, A2; at the end `audit` must agree.
May import: `durable`, `model`, `telemetry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from outlast.durable.audit import AuditReport, audit_run
from outlast.durable.cuts import newest_cut
from outlast.durable.files import PosixFiles
from outlast.durable.listing import read_run
from outlast.model.cut import Cut
from outlast.model.groups import RecoveryLevel
from outlast.telemetry import events
from outlast.testing.chaos_child import Taped

FILES = PosixFiles()
Slot = tuple[int, int]
"""(group, sibling)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a restart has to use: the newest cut of the lineage that proves whole."""

    name: str | None = None
    sequence: int = 0
    cut: Cut | None = None
    incarnation: int = 0
    """The newest incarnation on record."""
    restored_from: int | None = None
    """What it says that it restored."""

    @property
    def version(self) -> int:
        """Once the steps are replayed that a cut taken during a replay still has before it."""
        if self.cut is None:
            return 0
        return max(
            (record.step for record in self.cut.applied_steps), default=self.cut.trainer_version
        )

    def sealed(self) -> dict[Slot, str]:
        """Attempt key of every sealed sibling that must not be generated again."""
        return {
            (receipt.key.group, receipt.key.sibling): str(receipt.key)
            for group in (self.cut.groups if self.cut else ())
            if group.level is not RecoveryLevel.PROMPT_GROUP or group.all_sealed
            for receipt in group.receipts()
        }

    def waiting(self) -> int:
        """Sealed siblings of groups that no step has trained."""
        groups = self.cut.groups if self.cut else ()
        return sum(len(group.receipts()) for group in groups if group.holds_permit)

    def settled(self, group: int) -> bool:
        """Whether the prompt was trained or dropped before the cut."""
        if self.cut is None or group >= self.cut.drawn:
            return False
        live = {g.id for g in self.cut.groups} | {spare.id for spare in self.cut.reserve}
        return group not in live


def look(run_dir: Path) -> Standing:
    """Read a run directory as it was left. Every byte of the chosen cut's state is verified."""
    path = PurePosixPath(run_dir.absolute())
    listing = read_run(FILES, path, verify="payload")
    last = max(listing.incarnations, key=lambda record: record.number, default=None)
    newest = newest_cut(FILES, path, listing=listing)
    cut = None if newest.loaded is None else newest.loaded.cut
    return Standing(
        name=None if newest.found is None else newest.found.path.name,
        sequence=0 if cut is None else cut.sequence,
        cut=cut,
        incarnation=0 if last is None else last.number,
        restored_from=None if last is None else last.restored_from,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What a death cost, and what it did not."""

    siblings_reused: int
    tokens_reused: int
    siblings_lost: int
    """Sealed in the life that ended, and not in the cut that stands."""
    tokens_lost: int


@dataclass(slots=True)
class Books:
    """Books of one lineage: fed with every life, in order."""

    violations: list[str] = field(default_factory=list)
    steps: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Surviving steps -> groups, in training order."""
    acknowledged: int = 0
    """Highest sequence that a life said was published."""
    earlier: int = 0
    """The same before the life that is judged: ids of acknowledged cuts never return."""
    announced: int = 0
    """Highest incarnation that a life announced: also one that a power cut took from the disk."""
    life: int = 0

    def judge(self, tape: Sequence[Taped], *, before: Standing, after: Standing) -> Loss:
        """Take in one life: what it started from, what it said, what it left."""
        self.life += 1
        said = [taped.event for taped in tape]
        self._restored(said, before=before, after=after)
        self._dispatched(before, said)
        self._stepped(before, said)
        self._published(said, after)
        return _loss(said, after)

    def _violation(self, text: str) -> None:
        self.violations.append(f"life {self.life}: {text}")

    def _restored(
        self, said: Sequence[events.AnyEvent], *, before: Standing, after: Standing
    ) -> None:
        """The newest valid cut, and all of it; an adopted life says the same on disk."""
        expected = before.sequence or None
        if after.incarnation > before.incarnation and after.restored_from != expected:
            self._violation(f"restored {after.restored_from}, but {before.name} stood")
        for event in said:
            if isinstance(event, events.RunStarted):
                if event.incarnation <= max(before.incarnation, self.announced):
                    self._violation(f"S7: incarnation {event.incarnation} was used before")
                self.announced = max(self.announced, event.incarnation)
            if not isinstance(event, events.Restored):
                continue
            found = (event.sequence, event.trainer_version + event.steps_to_replay)
            if found != (expected, before.version):
                self._violation(
                    f"restored (sequence, version) {found}; {(expected, before.version)} stood"
                )
            if event.siblings_reused != before.waiting():
                self._violation(
                    f"S2: {event.siblings_reused} siblings reused of {before.waiting()}"
                )

    def _dispatched(self, before: Standing, said: Sequence[events.AnyEvent]) -> None:
        """P1, S4: nothing sealed and nothing settled is generated again."""
        sealed, number = before.sealed(), None
        for event in said:
            if isinstance(event, events.RunStarted):
                number = event.incarnation
            if not isinstance(event, events.AttemptDispatched):
                continue
            group, sibling, incarnation = _key(event.key)
            if incarnation != number:
                self._violation(f"{event.key} was dispatched by incarnation {number}")
            if (group, sibling) in sealed:
                held = sealed[group, sibling]
                self._violation(f"P1: {event.key} is generated again; {held} stood in the cut")
            if before.settled(group):
                self._violation(f"S4: {event.key}: its prompt was settled before the cut")

    def _stepped(self, before: Standing, said: Sequence[events.AnyEvent]) -> None:
        """S1, S7: steps go on from the restored version; later ones of earlier lives are void."""
        if not any(isinstance(event, events.RunStarted) for event in said):
            return
        self.steps = {step: g for step, g in self.steps.items() if step <= before.version}
        if len(self.steps) != before.version:
            self._violation(f"S7: version {before.version} stands on {len(self.steps)} known steps")
        for event in said:
            if isinstance(event, events.StepReplayed):
                if event.step not in self.steps:
                    self._violation(f"S1: step {event.step} is replayed, which nobody applied")
                if event.differences:
                    self._violation(f"step {event.step} replays otherwise: {event.differences}")
            if isinstance(event, events.StepFinished):
                expected = max(self.steps, default=0) + 1
                if event.step != expected:
                    self._violation(f"S1: step {event.step} follows version {expected - 1}")
                self.steps[event.step] = event.groups

    def _published(self, said: Sequence[events.AnyEvent], after: Standing) -> None:
        """A2: what was acknowledged, or something newer, can be restored."""
        self.earlier = self.acknowledged
        for event in said:
            if isinstance(event, events.SnapshotPublished | events.CheckpointPublished):
                if event.sequence <= self.earlier:
                    self._violation(f"A5: cut {event.sequence} was acknowledged before")
                self.acknowledged = max(self.acknowledged, event.sequence)
        if after.sequence < self.acknowledged:
            self._violation(
                f"A2: cut {self.acknowledged} was acknowledged; the newest valid one is "
                f"{after.sequence}"
            )

    def close(self, run_dir: Path, *, target: int | None) -> AuditReport:
        """The run is at rest, at `target` unless None: the audit must agree with these books."""
        report = audit_run(FILES, PurePosixPath(run_dir.absolute()))
        self.violations += [f"audit: {text}" for text in report.violations]
        if report.skipped or report.repeated:
            self._violation(f"audit: {report.skipped} skipped, {report.repeated} repeated")
        trained = [group for groups in self.steps.values() for group in groups]
        if len(set(trained)) != len(trained):
            self._violation("S1: a group stands in two surviving steps")
        if len(trained) != report.trained:
            self._violation(f"{len(trained)} groups in surviving steps, audit: {report.trained}")
        if sorted(self.steps) != list(range(1, report.trainer_version + 1)):
            self._violation(f"S1: surviving steps are {sorted(self.steps)}")
        if target is not None and report.trainer_version != target:
            self._violation(f"the run ended at {report.trainer_version}, its target is {target}")
        return report


def _key(text: str) -> tuple[int, int, int]:
    """(group, sibling, incarnation) of ``g3.s1.i2.n0``."""
    group, sibling, incarnation, _ = text.split(".")
    return int(group[1:]), int(sibling[1:]), int(incarnation[1:])


def _loss(said: Sequence[events.AnyEvent], after: Standing) -> Loss:
    kept = after.sealed()
    tokens = {
        str(receipt.key): receipt.response_tokens
        for group in (after.cut.groups if after.cut else ())
        for receipt in group.receipts()
    }
    lost = list(_lost(said, after, kept=kept))
    return Loss(
        siblings_reused=len(kept),
        tokens_reused=sum(tokens[key] for key in kept.values()),
        siblings_lost=len(lost),
        tokens_lost=sum(lost),
    )


def _lost(
    said: Sequence[events.AnyEvent], after: Standing, *, kept: dict[Slot, str]
) -> Iterator[int]:
    """Tokens of each sibling that was sealed, is not kept, and whose prompt is not settled."""
    dropped = {event.group for event in said if isinstance(event, events.GroupDropped)}
    for event in said:
        if isinstance(event, events.SiblingSealed):
            group, sibling, _ = _key(event.key)
            settled = group in dropped or after.settled(group)
            if kept.get((group, sibling)) != event.key and not settled:
                yield event.tokens
