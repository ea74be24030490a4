"""Published cuts as the tools need them: the newest valid one, and the chain of logs below a cut.

Read-only, and patient with a live run: a tree that retention removes while it is read is passed
over, not reported as damage.
May import: `durable.{cutcodec,files,lineage,manifest,verify}`, `model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.cutcodec import LoadedCut, load_cut, read_cut
from outlast.durable.files import Files
from outlast.durable.lineage import lineage_cuts
from outlast.durable.manifest import FoundCut, Manifest, RunListing, TreeKind
from outlast.durable.verify import verify_file
from outlast.errors import CorruptData
from outlast.model.cut import Cut, LogPosition


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest cut of the lineage that proves whole, and the newer ones that did not."""

    found: FoundCut | None
    loaded: LoadedCut | None
    rejected: tuple[tuple[str, str], ...]
    """(name, reason) of each newer cut that is damaged."""


def newest_cut(files: Files, run_dir: PurePosixPath, *, listing: RunListing) -> Newest:
    """Try the cuts of the lineage, newest first. Raises UnsupportedFormat or DiskError."""
    rejected = [
        (found.path.name, found.defect or "its manifest is unreadable")
        for found in listing.cuts
        if found.manifest is None
    ]
    for found in reversed(lineage_cuts(listing)):
        try:
            return Newest(found, load_cut(files, run_dir, found=found), tuple(rejected))
        except CorruptData as error:
            if files.exists(run_dir / found.path):
                rejected.append((found.path.name, str(error)))
    return Newest(None, None, tuple(rejected))


def read_chain(listing: RunListing, manifest: Manifest) -> tuple[LogPosition, ...]:
    """The logs that a cut stands on, oldest first, each up to where it counts.

    Raises CorruptData when an incarnation does not say what it restored.
    """
    records = {record.number: record for record in listing.incarnations}
    by_sequence = {c.manifest.sequence: c.manifest.log for c in listing.cuts if c.manifest}
    chain = [manifest.log]
    while True:
        number = chain[-1].incarnation
        record = records.get(number)
        if record is None:
            raise CorruptData(f"incarnation {number} has no record, but a log that counts")
        if record.restored_from is None:
            return tuple(reversed(chain))
        position = record.restored_log or by_sequence.get(record.restored_from)
        if position is None or position.incarnation >= number:
            raise CorruptData(
                f"incarnation {number} restored cut {record.restored_from}, of which neither the "
                f"tree nor a log position of an earlier incarnation is left"
            )
        chain.append(position)


def peek_cut(files: Files, run_dir: PurePosixPath, *, found: FoundCut) -> Cut:
    """The state of a cut without its rows: only its state is verified. For a quick look.

    Raises CorruptData, UnsupportedFormat or DiskError.
    """
    if found.manifest is None:
        raise CorruptData(f"{found.path}: {found.defect or 'its manifest is unreadable'}")
    bundled = found.kind is TreeKind.TRAINER_CHECKPOINT
    name = f"{names.ROLLOUT_STATE}/{names.STATE}" if bundled else names.STATE
    directory = run_dir / found.path
    for entry in found.manifest.files:
        if entry.name == name:
            verify_file(files, directory, entry=entry)
    return read_cut(files, directory / name)
