"""Fork: a new run that starts from a published cut of another one (DESIGN 2, 10, 11).

The source is only read. The new run is built beside its directory, published by the same code as
any cut, verified byte by byte, audited, and only then gets its name by one rename. It owns all of
its bytes: rows, shards and logs are private copies. It keeps the incarnations below the cut, so its
audit covers every draw since the first one, and adds one of its own that did nothing but publish.

    <new>.forking/unfinished/   run.json (a new run id), the lives below the cut with their logs as
                                far as they count, one life "forked", bootstrap anchor, the trainer
                                checkpoint that the cut needs, the cut

A kill leaves `<new>.forking`, which the next fork to the same name clears away (`staging`).

May import: the rest of `durable`, `model`, `errors`, `world`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import PurePosixPath

from outlast.durable.audit import audit_run
from outlast.durable.cutcodec import load_cut
from outlast.durable.files import Files
from outlast.durable.fingerprint import read_fingerprint
from outlast.durable.forkcut import Terms, rebased, reopened
from outlast.durable.forkdisk import Published, Source, Target
from outlast.durable.inspection import CutReader
from outlast.durable.listing import read_run
from outlast.durable.manifest import FoundCut
from outlast.durable.restore import Rejected, judge_cut
from outlast.durable.staging import require_free, staged
from outlast.errors import CorruptData, ForeignRun, InvariantError, NotRestorable
from outlast.model.cut import Cut
from outlast.model.groups import Group, GroupState
from outlast.world import World

STAGING = ".forking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """What was made."""

    run: str
    """Id of the new run."""
    source_run: str
    source_cut: str
    cut: str
    """Name of the cut in the new directory."""
    trainer_version: int
    anchor: str
    steps_to_replay: int
    groups: int
    """Groups not trained yet that the new run goes on with, besides the reserve."""
    siblings: int
    """Sealed siblings among them, none of which is generated again."""
    reserve: int
    """Prompts that were drawn and are admitted again."""
    trained: int
    dropped: int
    bytes: int


def fork_run(
    files: Files,
    run_dir: PurePosixPath,
    *,
    new_dir: PurePosixPath,
    found: FoundCut,
    world: World,
    terms: Terms | None = None,
) -> Forked:
    """Make `new_dir` a run that continues from `found`. The parent of `new_dir` must exist.

    `terms` drops the rollouts and puts the new run under another recipe. Raises NotRestorable (not
    empty, anchor missing), CorruptData for a damaged cut, FingerprintMismatch for terms that
    weights and cursor cannot keep, DiskError; then `new_dir` is as it was.
    """
    require_free(files, new_dir)
    source = _source(files, run_dir, found=found)
    cut = rebased(source.loaded.cut, source.plan.anchor)
    if terms is not None:
        stored = read_fingerprint(source.loaded.fingerprint, where=str(found.path))
        cut = reopened(cut, terms, stored=stored, name=found.path.name)
    with staged(files, new_dir, suffix=STAGING, world=world) as directory:
        target = Target(files, directory, source=source, world=world)
        try:
            published = target.publish(cut, terms=terms)
        except (CorruptData, FileNotFoundError):
            _expect_standing(files, run_dir, found=found)
            raise
        _prove(files, directory, published=published)
    assert source.listing.run is not None
    outstanding = _outstanding(published.cut)
    return Forked(
        run=published.manifest.run,
        source_run=source.listing.run.run,
        source_cut=found.path.name,
        cut=published.name,
        trainer_version=published.cut.trainer_version,
        anchor=str(published.cut.anchor),
        steps_to_replay=published.cut.trainer_version - published.cut.anchor.version,
        groups=len(outstanding),
        siblings=sum(len(group.receipts()) for group in outstanding),
        reserve=len(published.cut.reserve),
        trained=published.cut.settled.trained,
        dropped=sum(published.cut.settled.dropped.values()),
        bytes=published.bytes,
    )


def _outstanding(cut: Cut) -> list[Group]:
    trained = (GroupState.APPLIED, GroupState.REPLAY)
    return [group for group in cut.groups if group.state not in trained]


def _source(files: Files, run_dir: PurePosixPath, *, found: FoundCut) -> Source:
    """The cut with everything it stands on, verified. Raises CorruptData or NotRestorable."""
    listing = read_run(files, run_dir, verify="manifest")
    if listing.run is None:
        raise ForeignRun(f"{run_dir} has no run.json; required: the directory of a run")
    reader = CutReader(files, run_dir)
    try:
        defect = reader.inspector.verify(found) if found.manifest else found.defect
        if defect is not None:
            raise CorruptData(defect)
        plan = judge_cut(
            listing,
            found,
            fingerprint=reader.inspector.fingerprint(found),
            inspect=reader.inspector,
            max_replay_steps=sys.maxsize,
            off_lineage=True,
        )
    except CorruptData as error:
        _expect_standing(files, run_dir, found=found)
        raise CorruptData(f"{error}. Nothing was changed. Fork at another cut.") from error
    if isinstance(plan, Rejected):
        raise NotRestorable(f"{plan}. Nothing was changed. Fork at another cut.")
    return Source(
        files=files,
        run_dir=run_dir,
        listing=listing,
        plan=plan,
        loaded=reader.loaded(found),
        anchor=None if plan.anchor_tree is None else reader.loaded(plan.anchor_tree),
    )


def _expect_standing(files: Files, run_dir: PurePosixPath, *, found: FoundCut) -> None:
    if not files.exists(run_dir / found.path):
        raise NotRestorable(
            f"{found.path} has gone: the run is alive and has published newer cuts. Nothing was "
            "changed. Choose a newer cut, or a trainer checkpoint, which stays longer."
        )


def _prove(files: Files, directory: PurePosixPath, *, published: Published) -> None:
    """Read everything back from disk before it gets its name."""
    listing = read_run(files, directory, verify="payload")
    damaged = [found for found in listing.cuts if found.manifest is None]
    report = audit_run(files, directory)
    if damaged or not report.ok or report.cut != published.name:
        why = damaged[0].defect if damaged else "; ".join(report.violations[:3])
        raise InvariantError(f"the fork does not prove whole and was removed: {why or report.cut}")
    newest = next(found for found in listing.cuts if found.path.name == published.name)
    if load_cut(files, directory, found=newest).cut != published.cut:
        raise InvariantError("the fork reads back as another cut and was removed")
