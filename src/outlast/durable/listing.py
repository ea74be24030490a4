"""Reading a run directory, read-only: everything the restore planner and the tools look at.

Names are parsed by full match and compared as integers. Defects of a cut are recorded in its
`FoundCut`; damage to the identity or the incarnations of the run refuses the whole directory; an
I/O error other than ENOENT stops everything (S9, S10, P4). May import: `files`, `verify`, `names`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal, TypeVar

import msgspec

from outlast.durable import names
from outlast.durable.files import Files
from outlast.durable.manifest import (
    MANIFEST,
    BootstrapRecord,
    FoundCut,
    IncarnationEnd,
    IncarnationRecord,
    Manifest,
    RunListing,
    RunRecord,
    TreeKind,
    require_format,
)
from outlast.durable.packing import unpack
from outlast.durable.sealed import unseal
from outlast.durable.verify import read_manifest, verify_inventory, verify_payload
from outlast.errors import CorruptData

Depth = Literal["names", "manifest", "payload"]
T = TypeVar("T", bound=msgspec.Struct)


def read_run(files: Files, run_dir: PurePosixPath, *, verify: Depth) -> RunListing:
    """List a run directory. A missing directory is an empty listing.

    `verify`: "names" opens no cut, "manifest" proves marker, manifest, inventory and sizes,
    "payload" also digests every file. Raises CorruptData for damaged run.json, incarnation or
    bootstrap records, UnsupportedFormat for intact state of another format, DiskError.
    """
    paths = names.RunPaths(run_dir)
    top = _names(files, run_dir)
    run = _record(files, paths.run, kind=RunRecord)
    if run is not None:
        require_format(run.format, where=str(paths.run))
    bootstrap = _record(files, paths.bootstrap, kind=BootstrapRecord)
    if bootstrap is not None:
        require_format(bootstrap.format, where=str(paths.bootstrap))
    incarnations, ends = _incarnations(files, paths)
    if run is None and incarnations:
        raise CorruptData(f"{paths.run} is missing, yet {len(incarnations)} incarnations ran here")
    cuts = tuple(_cuts(files, run_dir, top=top, run=run, verify=verify))
    debris = tuple(_debris(files, run_dir, top=top))
    return RunListing(
        run=run,
        incarnations=incarnations,
        ends=ends,
        bootstrap=bootstrap,
        cuts=cuts,
        highest_sequence=_highest_sequence(
            files, run_dir, top=top, cuts=cuts, debris=debris, incarnations=incarnations
        ),
        debris=debris,
        strangers=tuple(name for name in top if _is_stranger(name)),
    )


def _names(files: Files, directory: PurePosixPath) -> tuple[str, ...]:
    try:
        return files.list(directory)
    except FileNotFoundError:
        return ()


def _record(files: Files, path: PurePosixPath, *, kind: type[T]) -> T | None:
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    return unseal(data, kind, where=str(path))


def _incarnations(
    files: Files, paths: names.RunPaths
) -> tuple[tuple[IncarnationRecord, ...], tuple[IncarnationEnd, ...]]:
    records: list[IncarnationRecord] = []
    ends: list[IncarnationEnd] = []
    for name in _names(files, paths.incarnations):
        path = paths.incarnations / name
        number, end = names.parse_incarnation(name), names.parse_incarnation_end(name)
        if number is not None and (record := _record(files, path, kind=IncarnationRecord)):
            _expect_number(path, number, written=record.number)
            records.append(record)
        elif end is not None and (ended := _record(files, path, kind=IncarnationEnd)):
            _expect_number(path, end, written=ended.number)
            ends.append(ended)
    return (
        tuple(sorted(records, key=lambda record: record.number)),
        tuple(sorted(ends, key=lambda record: record.number)),
    )


def _expect_number(path: PurePosixPath, named: int, *, written: int) -> None:
    if named != written:
        raise CorruptData(f"{path} is about incarnation {written}")


# ---------------------------------------------------------------------------------- cuts


def _cuts(
    files: Files,
    run_dir: PurePosixPath,
    *,
    top: tuple[str, ...],
    run: RunRecord | None,
    verify: Depth,
) -> Iterator[FoundCut]:
    for kind, path, number in _live_names(files, run_dir, top=top):
        found = find_cut(
            files, run_dir, path=path, kind=kind, number=number, run=run, verify=verify
        )
        if found is not None:
            yield found


def _live_names(
    files: Files, run_dir: PurePosixPath, *, top: tuple[str, ...]
) -> list[tuple[TreeKind, PurePosixPath, int]]:
    found: list[tuple[TreeKind, PurePosixPath, int]] = []
    for name in _names(files, run_dir / names.SNAPSHOTS):
        number = names.parse_snapshot(name)
        if number is not None:
            found.append((TreeKind.SNAPSHOT, PurePosixPath(names.SNAPSHOTS, name), number))
    for name in top:
        number = names.parse_checkpoint(name)
        if number is not None:
            found.append((TreeKind.TRAINER_CHECKPOINT, PurePosixPath(name), number))
    return sorted(found, key=lambda item: (item[0].value, item[2]))


def find_cut(
    files: Files,
    run_dir: PurePosixPath,
    *,
    path: PurePosixPath,
    kind: TreeKind,
    number: int,
    run: RunRecord | None,
    verify: Depth,
) -> FoundCut | None:
    """Look at one live name; None when it has gone meanwhile (a live run retains)."""
    manifest: Manifest | None = None
    defect: str | None = None
    directory = run_dir / path
    if verify != "names":
        try:
            manifest = read_manifest(files, directory)
            verify_inventory(files, directory, manifest=manifest)
            _expect_identity(manifest, path=path, kind=kind, number=number, run=run)
            if verify == "payload":
                verify_payload(files, directory, manifest=manifest)
        except (CorruptData, FileNotFoundError) as error:
            if not files.exists(directory):
                return None
            manifest, defect = None, str(error)
    size = 0 if manifest is None else sum(entry.size for entry in manifest.files)
    return FoundCut(
        path=path, kind=kind, number=number, manifest=manifest, defect=defect, bytes=size
    )


def _expect_identity(
    manifest: Manifest,
    *,
    path: PurePosixPath,
    kind: TreeKind,
    number: int,
    run: RunRecord | None,
) -> None:
    named = manifest.sequence if kind is TreeKind.SNAPSHOT else manifest.trainer_version
    if manifest.kind is not kind or named != number:
        raise CorruptData(f"{path} holds {manifest.kind} {named}: it was renamed by hand")


# ------------------------------------------------------------------- debris and numbers


def _debris(
    files: Files, run_dir: PurePosixPath, *, top: tuple[str, ...]
) -> Iterator[PurePosixPath]:
    yield from (PurePosixPath(name) for name in top if names.is_debris(name))
    for place in (names.BOOTSTRAP, names.CONSUMPTION, names.INCARNATIONS, names.SNAPSHOTS):
        for name in _names(files, run_dir / place):
            if names.is_debris(name):
                yield PurePosixPath(place, name)


def _is_stranger(name: str) -> bool:
    known = name in names.TOP_LEVEL or names.is_debris(name) or names.is_stale(name)
    return not known and names.parse_checkpoint(name) is None


class _Numbered(msgspec.Struct):
    sequence: int


def _highest_sequence(
    files: Files,
    run_dir: PurePosixPath,
    *,
    top: tuple[str, ...],
    cuts: tuple[FoundCut, ...],
    debris: tuple[PurePosixPath, ...],
    incarnations: tuple[IncarnationRecord, ...],
) -> int:
    """A5: also counts numbers that were spent on trees which never became live."""
    seen = [0, *(record.first_sequence - 1 for record in incarnations)]
    seen += [names.parse_debris_sequence(path.name) or 0 for path in debris]
    seen += [found.number for found in cuts if found.kind is TreeKind.SNAPSHOT]
    seen += [found.manifest.sequence for found in cuts if found.manifest is not None]
    unread = [
        run_dir / found.path
        for found in cuts
        if found.kind is TreeKind.TRAINER_CHECKPOINT and found.manifest is None
    ]
    unread += [run_dir / name for name in top if names.is_stale(name)]
    salvaged = [_salvage_sequence(files, directory) for directory in unread]
    seen += [number for number in salvaged if number is not None]
    # Each tree that does not tell its number may have spent one more.
    return max(seen) + sum(number is None for number in salvaged)


def _salvage_sequence(files: Files, directory: PurePosixPath) -> int | None:
    """The sequence of a tree that may be damaged; only used to skip numbers."""
    for name in (MANIFEST, f"{names.ROLLOUT_STATE}/{names.STATE}"):
        try:
            data = files.read(directory / name)
            data = data if name == MANIFEST else unpack(data, where=name)
            return msgspec.json.decode(data, type=_Numbered).sequence
        except (FileNotFoundError, CorruptData, msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None
