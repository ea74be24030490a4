"""Anchors: the bootstrap record, and which trainer checkpoints retention must spare (DESIGN 9).

Deleting an anchor that a snapshot needs would make the snapshot unrestorable, so a checkpoint is
removed only when nothing names it. May import: `files`, `publish`, `manifest`, `names`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.files import Files, make_directory
from outlast.durable.manifest import BootstrapRecord, FoundCut, Manifest
from outlast.durable.publish import publish_file
from outlast.durable.sealed import seal
from outlast.errors import ForeignRun
from outlast.model.cut import AnchorKind
from outlast.model.ids import TrainerVersion

NEWEST_KEPT = 2
"""Whole trainer checkpoints that stay whatever else is asked for."""


def write_bootstrap(files: Files, run_dir: PurePosixPath, *, record: BootstrapRecord) -> None:
    """Record the initial model, once. Writing the same record again changes nothing.

    Raises ForeignRun when another initial model is recorded already.
    """
    path = names.RunPaths(run_dir).bootstrap
    make_directory(files, path.parent)
    data = seal(record)
    try:
        publish_file(files, path, data=data)
    except FileExistsError as error:
        if files.read(path) != data:
            raise ForeignRun(
                f"{path} names another initial model, tokenizer or fingerprint than this run; "
                f"use the recipe that started it, or a new run directory"
            ) from error


Score = Callable[[Manifest], float | None]
"""What `keep_top_k` ranks by, higher is better; None when the metric is not known (yet)."""


def removable_checkpoints(
    checkpoints: Iterable[FoundCut],
    *,
    snapshots: Iterable[FoundCut],
    pinned: Collection[TrainerVersion],
    keep_top_k: int,
    score: Score,
) -> tuple[FoundCut, ...]:
    """Whole on-lineage checkpoints that may go, oldest first.

    Spared: the newest two, anchors of any snapshot that stands (`snapshots` holds foreign ones
    too), `pinned` ones, and with `keep_top_k` > 0 the best and those whose score is still awaited.
    """
    whole = [(found.manifest, found) for found in checkpoints if found.manifest is not None]
    whole.sort(key=lambda item: item[0].trainer_version)
    spared = {manifest.trainer_version for manifest, _ in whole[-NEWEST_KEPT:]} | set(pinned)
    for snapshot in snapshots:
        if snapshot.manifest and snapshot.manifest.anchor.kind is AnchorKind.CHECKPOINT:
            spared.add(snapshot.manifest.anchor.version)
    ranks = keep_top_k > 0
    scored = [(score(manifest), manifest.trainer_version) for manifest, _ in whole if ranks]
    spared |= {version for value, version in scored if value is None}
    ranked = sorted(((v, n) for v, n in scored if v is not None), reverse=True)
    spared |= {version for _, version in ranked[:keep_top_k]}
    return tuple(found for manifest, found in whole if manifest.trainer_version not in spared)
