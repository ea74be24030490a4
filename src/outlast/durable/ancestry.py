"""Which cuts lie on the lineage (DESIGN 2): pure functions of a run listing.

A cut is on the lineage if the newest incarnation published it, or if its sequence is at most the
`restored_from` of the next incarnation on the lineage. Others are foreign: kept and listed, never
chosen by themselves. May import: `durable.manifest`, `model.ids`.
"""

from __future__ import annotations

from collections.abc import Sequence as Records
from pathlib import PurePosixPath

from outlast.durable.manifest import IncarnationRecord, Manifest, RunListing
from outlast.model.ids import Incarnation, Sequence


def lineage(incarnations: Records[IncarnationRecord]) -> dict[Incarnation, Sequence | None]:
    """Incarnations of the lineage, newest first -> its last cut there (None: all of them).

    Sequences are never reused within a run and incarnations follow one another, so a cut belongs
    to the last incarnation before its restorer whose first sequence is not above it.
    """
    found: dict[Incarnation, Sequence | None] = {}
    current = max(incarnations, key=lambda record: record.number, default=None)
    bound: Sequence | None = None
    while current is not None:
        found[current.number] = bound
        bound = current.restored_from
        current = None if bound is None else _owner(incarnations, bound, before=current.number)
    return found


def _owner(
    incarnations: Records[IncarnationRecord], sequence: Sequence, *, before: Incarnation
) -> IncarnationRecord | None:
    older = [r for r in incarnations if r.number < before and r.first_sequence <= sequence]
    return max(older, key=lambda record: record.number, default=None)


def of_another_run(listing: RunListing, manifest: Manifest) -> bool:
    """Whether the tree was copied in from another run."""
    return listing.run is None or manifest.run != listing.run.run


def why_foreign(listing: RunListing, manifest: Manifest) -> str | None:
    """Why a cut is not on the lineage; None when it is."""
    if of_another_run(listing, manifest):
        own = "none" if listing.run is None else listing.run.run
        return f"of another run ({manifest.run}; this one is {own})"
    bounds = lineage(listing.incarnations)
    if manifest.incarnation not in bounds:
        return f"published by incarnation {manifest.incarnation}, which no later one continued"
    bound = bounds[manifest.incarnation]
    if bound is not None and manifest.sequence > bound:
        return (
            f"cut {manifest.sequence} of incarnation {manifest.incarnation}, whose successor "
            f"went on from cut {bound}"
        )
    return None


def on_lineage(listing: RunListing) -> frozenset[PurePosixPath]:
    """Paths of the readable cuts on the lineage, snapshots and trainer checkpoints alike."""
    return frozenset(
        cut.path
        for cut in listing.cuts
        if cut.manifest is not None and why_foreign(listing, cut.manifest) is None
    )
