"""Records of the on-disk format, their strict encoding, and what a listing of a run finds.

The format is one version, read strictly: an unknown field, a missing one or another version is a
refusal, never a guess (S10). No pickle. May import: `model`, `errors`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TypeVar

import msgspec

from outlast.errors import CorruptData, UnsupportedFormat
from outlast.model.cut import Anchor, LogPosition
from outlast.model.ids import Incarnation, Sequence, TrainerVersion

FORMAT = 1
"""The one format version that this release writes and reads."""

MANIFEST = "MANIFEST.json"
COMMITTED = "COMMITTED"

T = TypeVar("T", bound=msgspec.Struct)


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class FileEntry(_Record, frozen=True, kw_only=True):
    """One payload file of a published tree, named relative to it with forward slashes."""

    name: str
    size: int
    sha256: str


class TreeKind(StrEnum):
    """What a published directory holds."""

    SNAPSHOT = "snapshot"
    TRAINER_CHECKPOINT = "trainer_checkpoint"


class Manifest(_Record, frozen=True, kw_only=True):
    """MANIFEST.json of a snapshot or a trainer checkpoint. COMMITTED holds its sha256."""

    format: int
    kind: TreeKind
    run: str
    """Id of the run: refuses trees copied in from another run."""
    sequence: Sequence
    """Of the cut inside (a trainer checkpoint carries its bundled cut)."""
    incarnation: Incarnation
    parent: Sequence | None
    anchor: Anchor
    """Of a snapshot: what it was anchored to. Of a trainer checkpoint: itself."""
    trainer_version: TrainerVersion
    history: str
    log: LogPosition
    fingerprint: str
    """Digest of fingerprint.json."""
    created: float
    """Wall clock, seconds since the epoch; shown, never compared."""
    metrics: dict[str, float]
    """Scalars of the step (trainer checkpoints), for retention by metric; else empty."""
    files: tuple[FileEntry, ...]


class RunRecord(_Record, frozen=True, kw_only=True):
    """run.json: identity of the run directory, written once by the first adoption."""

    format: int
    run: str
    created: float


class IncarnationRecord(_Record, frozen=True, kw_only=True):
    """incarnations/NNNNNN.json, created exclusively at adoption."""

    number: Incarnation
    host: str
    pid: int
    started: float
    restored_from: Sequence | None
    first_sequence: Sequence
    """No cut of this incarnation has a lower sequence."""
    restored_log: LogPosition | None
    """Log position of the restored cut: the audit needs it after retention removed the cut."""


class IncarnationEnd(_Record, frozen=True, kw_only=True):
    """incarnations/NNNNNN.end.json, written on an orderly end."""

    number: Incarnation
    reason: str
    ended: float
    last_cut: Sequence | None


class BootstrapRecord(_Record, frozen=True, kw_only=True):
    """bootstrap/anchor.json: the identity of the initial model and what rollouts mean."""

    format: int
    model: str
    """Digest of initial weights and config."""
    tokenizer: str
    fingerprint: str


class CutState(StrEnum):
    """Verdict on a published cut, as `snapshots list` shows it."""

    VALID = "valid"
    CORRUPT = "corrupt"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCut:
    """One live name that should hold a cut."""

    path: PurePosixPath
    """Directory relative to the run directory: snapshots/snapshot_000007 or step_000012."""
    kind: TreeKind
    number: int
    """Integer of the name: a sequence, or a trainer version."""
    manifest: Manifest | None
    """None when it could not be verified."""
    defect: str | None
    """Why it is corrupt; None when marker, manifest and (if asked for) payload agree."""
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListing:
    """Everything the restore planner and the tools look at, read once and read-only."""

    run: RunRecord | None
    incarnations: tuple[IncarnationRecord, ...]
    """By number."""
    ends: tuple[IncarnationEnd, ...]
    bootstrap: BootstrapRecord | None
    cuts: tuple[FoundCut, ...]
    """Snapshots and trainer checkpoints, by (kind, number)."""
    highest_sequence: int
    """Highest cut sequence ever seen on disk, under live, tmp_, trash_ and stale_ names."""
    debris: tuple[PurePosixPath, ...]
    """tmp_* and trash_* trees that a sweep would remove."""
    strangers: tuple[str, ...]
    """Top-level entries that do not belong to a run directory."""


def encode(record: msgspec.Struct) -> bytes:
    """Canonical JSON of a record: fields in declaration order, one trailing newline."""
    return msgspec.json.encode(record, order="deterministic") + b"\n"


def decode(data: bytes, kind: type[T], *, where: str) -> T:
    """Strictly decode `data`. Raises CorruptData for bytes that are not such a record."""
    try:
        return msgspec.json.decode(data, type=kind, strict=True)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptData(f"{where} is not a valid {kind.__name__}: {error}") from error


def require_format(found: int, *, where: str) -> None:
    """Refuse any format but this release's. Raises UnsupportedFormat."""
    if found != FORMAT:
        raise UnsupportedFormat(
            f"{where} has format {found}; this release reads format {FORMAT} only. "
            f"Use the release that wrote it, or start in a new directory."
        )


def sha256(data: bytes) -> str:
    """Hex sha256 of `data`."""
    return hashlib.sha256(data).hexdigest()
