"""Listings of made-up run directories, for tests of the restore planner."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from outlast.config.load import parse_recipe
from outlast.durable.fingerprint import Fingerprint, Identities, fingerprint_of
from outlast.durable.manifest import (
    FORMAT,
    BootstrapRecord,
    FoundCut,
    IncarnationEnd,
    IncarnationRecord,
    Manifest,
    RunListing,
    RunRecord,
    TreeKind,
)
from outlast.durable.restore import Inspector, Plan, RestoreMode, plan_restore
from outlast.model.cut import GENESIS, Anchor, AnchorKind, LogPosition
from outlast.model.ids import Incarnation, Sequence, TrainerVersion

RUN = "run-a"
IDENTITIES = Identities(model="model-1", tokenizer="tok-1", dataset="data-1", environment="env-1")


def fingerprint(*overrides: str) -> Fingerprint:
    return fingerprint_of(parse_recipe("", overrides, source="test").recipe, IDENTITIES)


TODAY = fingerprint()


def history(version: int) -> str:
    return GENESIS if version == 0 else f"{version:064x}"


def anchor(version: int) -> Anchor:
    kind = AnchorKind.BOOTSTRAP if version == 0 else AnchorKind.CHECKPOINT
    return Anchor(kind=kind, version=TrainerVersion(version), history=history(version))


def manifest(
    kind: TreeKind,
    sequence: int,
    version: int,
    *,
    base: Anchor,
    run: str = RUN,
    incarnation: int = 1,
    under: Fingerprint = TODAY,
    past: str | None = None,
    format: int = FORMAT,
) -> Manifest:
    return Manifest(
        format=format,
        kind=kind,
        run=run,
        sequence=Sequence(sequence),
        incarnation=Incarnation(incarnation),
        parent=None,
        anchor=base,
        trainer_version=TrainerVersion(version),
        history=history(version) if past is None else past,
        log=LogPosition(incarnation=Incarnation(incarnation), length=0, digest=""),
        fingerprint=under.digest,
        created=0.0,
        metrics={},
        files=(),
    )


def tree(made: Manifest, *, defect: str | None = None, unreadable: bool = False) -> FoundCut:
    snapshot = made.kind is TreeKind.SNAPSHOT
    number = made.sequence if snapshot else made.trainer_version
    name = f"snapshots/snapshot_{number:06d}" if snapshot else f"step_{number:06d}"
    return FoundCut(
        path=PurePosixPath(name),
        kind=made.kind,
        number=number,
        manifest=None if unreadable else made,
        defect=defect,
        bytes=1,
    )


def snapshot(
    sequence: int,
    version: int = 0,
    *,
    base: int | None = None,
    run: str = RUN,
    incarnation: int = 1,
    under: Fingerprint = TODAY,
) -> FoundCut:
    """A snapshot at trainer version `version` that started from anchor version `base`."""
    return tree(
        manifest(
            TreeKind.SNAPSHOT,
            sequence,
            version,
            base=anchor(version if base is None else base),
            run=run,
            incarnation=incarnation,
            under=under,
        )
    )


def step(
    version: int,
    sequence: int,
    *,
    run: str = RUN,
    incarnation: int = 1,
    under: Fingerprint = TODAY,
    past: str | None = None,
) -> FoundCut:
    """A trainer checkpoint with its bundled cut."""
    base = Anchor(
        kind=AnchorKind.CHECKPOINT,
        version=TrainerVersion(version),
        history=history(version) if past is None else past,
    )
    kind = TreeKind.TRAINER_CHECKPOINT
    return tree(
        manifest(
            kind,
            sequence,
            version,
            base=base,
            run=run,
            incarnation=incarnation,
            under=under,
            past=past,
        )
    )


def life(number: int, first: int = 1, restored: int | None = None) -> IncarnationRecord:
    return IncarnationRecord(
        number=Incarnation(number),
        host="host",
        pid=1,
        started=0.0,
        restored_from=None if restored is None else Sequence(restored),
        first_sequence=Sequence(first),
        restored_log=None,
    )


def end(number: int, last: int | None) -> IncarnationEnd:
    return IncarnationEnd(
        number=Incarnation(number),
        reason="done",
        ended=1.0,
        last_cut=None if last is None else Sequence(last),
    )


BOOTSTRAP = BootstrapRecord(
    format=FORMAT, model="model-1", tokenizer="tok-1", fingerprint=TODAY.digest
)


def listing(
    *cuts: FoundCut,
    run: RunRecord | None = RunRecord(format=FORMAT, run=RUN, created=0.0),  # noqa: B008
    lives: Iterable[IncarnationRecord] = (life(1),),
    ends: Iterable[IncarnationEnd] = (),
    bootstrap: BootstrapRecord | None = BOOTSTRAP,
    debris: Iterable[str] = (),
    strangers: Iterable[str] = (),
) -> RunListing:
    return RunListing(
        run=run,
        incarnations=tuple(lives),
        ends=tuple(ends),
        bootstrap=bootstrap,
        cuts=cuts,
        highest_sequence=max((c.manifest.sequence for c in cuts if c.manifest), default=0),
        debris=tuple(map(PurePosixPath, debris)),
        strangers=tuple(strangers),
    )


@dataclass
class Disk:
    """Answers of the planner's callbacks, and what it asked for."""

    rotten: dict[str, str] = field(default_factory=dict)
    """Path -> defect that only reading every byte shows."""
    stored: tuple[Fingerprint, ...] = (TODAY,)
    asked: list[str] = field(default_factory=list)

    def verify(self, cut: FoundCut) -> str | None:
        self.asked.append(str(cut.path))
        return self.rotten.get(str(cut.path))

    def read(self, cut: FoundCut) -> Fingerprint:
        assert cut.manifest is not None
        return next(f for f in self.stored if f.digest == cut.manifest.fingerprint)

    def plan(
        self,
        found: RunListing,
        mode: RestoreMode = RestoreMode.LATEST,
        *,
        current: Fingerprint = TODAY,
        fresh: bool = False,
        max_replay_steps: int = 0,
    ) -> Plan:
        return plan_restore(
            found,
            mode=mode,
            fingerprint=current,
            inspect=Inspector(verify=self.verify, fingerprint=self.read),
            fresh=fresh,
            max_replay_steps=max_replay_steps,
        )
