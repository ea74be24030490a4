"""What retention and sweep would remove now, and what that would free. Pure on files, read-only.

The choice is retention's own; only the accounting is here. Segments are shared by hard link, so a
tree frees the bytes of those files only that nothing left standing has, by name or digest.
May import: `durable`, `errors`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.anchors import Score
from outlast.durable.files import Files, walk
from outlast.durable.lineage import lineage_cuts
from outlast.durable.manifest import FoundCut, RunListing
from outlast.durable.retention import superseded_checkpoints, superseded_snapshots


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would go."""

    path: str
    """Relative to the run directory."""
    by: str
    """`sweep` at the next start, or `retention` at the next save of its kind."""
    why: str
    bytes: int
    """Of its files."""
    frees: int
    """Bytes that no other tree holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What retention is asked to keep."""

    latest_k: int
    top_k: int
    score: Score


def removals(
    files: Files, run_dir: PurePosixPath, *, listing: RunListing, keep: Keep
) -> tuple[Removal, ...]:
    """Everything that retention and a sweep would remove. Raises DiskError."""
    snapshots = superseded_snapshots(listing, keep.latest_k)
    left = _without(listing, snapshots)
    checkpoints = superseded_checkpoints(left, pinned=(), keep_top_k=keep.top_k, score=keep.score)
    left = _without(left, checkpoints)
    standing = _shared(files, run_dir, cuts=left.cuts)
    found = [
        *((f, f"superseded: the newest {keep.latest_k} stay") for f in snapshots),
        *((f, "no snapshot is anchored to it, and two newer ones stand") for f in checkpoints),
    ]
    return (
        *(
            _tree(
                files,
                run_dir,
                path=f.path,
                by="retention",
                why=w,
                standing=standing,
                digests=_digests(run_dir, f),
            )
            for f, w in found
        ),
        *(
            _tree(files, run_dir, path=path, by="sweep", why=_debris(path), standing=standing)
            for path in listing.debris
        ),
        *_segments(files, run_dir, listing=left),
    )


def _without(listing: RunListing, gone: Iterable[FoundCut]) -> RunListing:
    paths = {found.path for found in gone}
    kept = tuple(found for found in listing.cuts if found.path not in paths)
    return RunListing(
        run=listing.run,
        incarnations=listing.incarnations,
        ends=listing.ends,
        bootstrap=listing.bootstrap,
        cuts=kept,
        highest_sequence=listing.highest_sequence,
        debris=listing.debris,
        strangers=listing.strangers,
    )


def _debris(path: PurePosixPath) -> str:
    if path.name.startswith("trash_"):
        return "removed by retention, not yet deleted"
    return "never published: under construction, or left by a kill"


def _shared(files: Files, run_dir: PurePosixPath, *, cuts: Iterable[FoundCut]) -> frozenset[str]:
    """Names and digests of files that stay: a life gives what it restored names of its own."""
    kept = {
        word
        for found in cuts
        if found.manifest is not None
        for entry in found.manifest.files
        for word in (PurePosixPath(entry.name).name, entry.sha256)
    }
    return frozenset(kept | set(_names(files, run_dir / names.SEGMENTS)))


def _names(files: Files, directory: PurePosixPath) -> tuple[str, ...]:
    try:
        return files.list(directory)
    except FileNotFoundError:
        return ()


def _tree(
    files: Files,
    run_dir: PurePosixPath,
    *,
    path: PurePosixPath,
    by: str,
    why: str,
    standing: frozenset[str],
    digests: Mapping[PurePosixPath, str] | None = None,
) -> Removal:
    sizes = dict(_sizes(files, run_dir / path))
    known = digests or {}
    freed = (s for name, s in sizes.items() if not _stays(name, standing, digest=known.get(name)))
    return Removal(path=str(path), by=by, why=why, bytes=sum(sizes.values()), frees=sum(freed))


def _digests(run_dir: PurePosixPath, found: FoundCut) -> dict[PurePosixPath, str]:
    listed = () if found.manifest is None else found.manifest.files
    return {run_dir / found.path / entry.name: entry.sha256 for entry in listed}


def _stays(path: PurePosixPath, standing: frozenset[str], *, digest: str | None) -> bool:
    return names.is_segment(path.name) and (path.name in standing or digest in standing)


def _sizes(files: Files, path: PurePosixPath) -> list[tuple[PurePosixPath, int]]:
    """Files of a tree or a file; what goes meanwhile (a live run) counts nothing."""
    try:
        found = walk(files, path)[1] if files.stat(path).is_dir else (path,)
        return [(file, files.stat(file).size) for file in found]
    except FileNotFoundError:
        return []


def _links(files: Files, path: PurePosixPath) -> int:
    try:
        return files.stat(path).links
    except FileNotFoundError:
        return 1


def _segments(files: Files, run_dir: PurePosixPath, *, listing: RunListing) -> list[Removal]:
    """Segments that the newest cut lacks: a start rebuilds the directory from what it restores."""
    newest = lineage_cuts(listing)[-1:]
    wanted = {
        PurePosixPath(entry.name).name
        for found in newest
        if found.manifest is not None
        for entry in found.manifest.files
    }
    held = {
        PurePosixPath(entry.name).name
        for found in listing.cuts
        if found.manifest is not None
        for entry in found.manifest.files
    }
    removed = []
    for name in _names(files, run_dir / names.SEGMENTS):
        if name in wanted:
            continue
        path = PurePosixPath(names.SEGMENTS, name)
        size = sum(size for _, size in _sizes(files, run_dir / path))
        why = (
            f"not in {newest[0].path.name}, from which a start would go on" if newest else "unnamed"
        )
        frees = 0 if name in held or _links(files, run_dir / path) > 1 else size
        removed.append(Removal(path=str(path), by="sweep", why=why, bytes=size, frees=frees))
    return removed
