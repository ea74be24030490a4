"""Lives of the controller on a run directory: adoption, fencing, orderly ends.

Everything before `adopt` leaves the disk as it was (A6, S9); a failure after it costs a number.
Keeps S7 (sequence and incarnation never go back) and the fencing of DESIGN 10.
May import: `files`, `publish`, `ancestry`, `manifest`, `names`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.ancestry import on_lineage, why_foreign
from outlast.durable.files import Files, make_directory
from outlast.durable.manifest import (
    FORMAT,
    CutState,
    FoundCut,
    IncarnationEnd,
    IncarnationRecord,
    Manifest,
    RunListing,
    RunRecord,
    sha256,
)
from outlast.durable.publish import publish_file
from outlast.durable.sealed import seal
from outlast.errors import Fenced
from outlast.model import ids
from outlast.model.ids import Incarnation
from outlast.world import World


def lineage_cuts(listing: RunListing) -> tuple[FoundCut, ...]:
    """Verified cuts on the lineage, both kinds, by sequence from old to new."""
    ours = on_lineage(listing)
    held = [(f.manifest.sequence, f) for f in listing.cuts if f.manifest and f.path in ours]
    return tuple(found for _, found in sorted(held, key=lambda item: item[0]))


def cut_state(listing: RunListing, found: FoundCut) -> CutState:
    """The verdict that `snapshots list` shows."""
    if found.manifest is None or found.defect is not None:
        return CutState.CORRUPT
    return CutState.VALID if why_foreign(listing, found.manifest) is None else CutState.FOREIGN


# ------------------------------------------------------------------------------ fencing


class IncarnationFence:
    """Fencing on shared storage: a higher incarnation than ours means that we were replaced."""

    def __init__(self, files: Files, run_dir: PurePosixPath, *, incarnation: Incarnation) -> None:
        self._files = files
        self._directory = names.RunPaths(run_dir).incarnations
        self.incarnation = incarnation

    def check(self) -> None:
        """Raises Fenced, after which this controller must touch nothing more."""
        found = [names.parse_incarnation(name) or 0 for name in self._files.list(self._directory)]
        newest = max(found, default=0)
        if newest > self.incarnation:
            raise Fenced(
                f"incarnation {newest} has taken over {self._directory.parent}; this one is "
                f"{self.incarnation} and stops without touching it"
            )


# ----------------------------------------------------------------------------- adoption


@dataclass(frozen=True, slots=True)
class Adoption:
    """This controller owns the run directory under a number of its own."""

    run: RunRecord
    record: IncarnationRecord
    fence: IncarnationFence


def next_incarnation(listing: RunListing) -> Incarnation:
    """The number that an adoption of this listing will create."""
    return Incarnation(max((record.number for record in listing.incarnations), default=0) + 1)


def adopt(
    files: Files,
    run_dir: PurePosixPath,
    *,
    listing: RunListing,
    restored: Manifest | None,
    world: World,
) -> Adoption:
    """Create the next incarnation durably; everything before this left the disk unchanged.

    Raises Fenced when another controller created the same number first.
    """
    paths = names.RunPaths(run_dir)
    run = listing.run or _create_run(files, paths, world=world)
    for directory in (paths.incarnations, paths.consumption, paths.snapshots):
        make_directory(files, directory)
    record = IncarnationRecord(
        number=next_incarnation(listing),
        host=world.identity.host,
        pid=world.identity.pid,
        started=world.clock.wall(),
        restored_from=None if restored is None else restored.sequence,
        restored_log=None if restored is None else restored.log,
        first_sequence=ids.Sequence(listing.highest_sequence + 1),
    )
    path = paths.incarnations / names.incarnation(record.number)
    _create(files, path, data=seal(record))
    fence = IncarnationFence(files, run_dir, incarnation=record.number)
    return Adoption(run=run, record=record, fence=fence)


def _create_run(files: Files, paths: names.RunPaths, *, world: World) -> RunRecord:
    born = world.clock.wall()
    identity = f"{world.identity.host}/{world.identity.pid}/{born}/{world.random.getrandbits(64)}"
    run = RunRecord(format=FORMAT, run=sha256(identity.encode())[:16], created=born)
    _create(files, paths.run, data=seal(run))
    return run


def _create(files: Files, path: PurePosixPath, *, data: bytes) -> None:
    """Raises Fenced when another controller was first: the name is taken, or our draft swept."""
    try:
        publish_file(files, path, data=data)
    except (FileExistsError, FileNotFoundError) as error:
        raise Fenced(
            f"{path} was created by another controller; this one touches nothing"
        ) from error


def write_end(
    files: Files,
    run_dir: PurePosixPath,
    *,
    number: Incarnation,
    reason: str,
    last_cut: ids.Sequence | None,
    ended: float,
) -> None:
    """Record an orderly end. Idempotent: a second end of the same life changes nothing."""
    record = IncarnationEnd(number=number, reason=reason, ended=ended, last_cut=last_cut)
    path = names.RunPaths(run_dir).incarnations / names.incarnation_end(number)
    with contextlib.suppress(FileExistsError):
        publish_file(files, path, data=seal(record))
