"""state.json.zst: a cut as packed JSON, encoded record by record, and read back strictly.

Groups are immutable and most stay the same from one snapshot to the next, so their encodings are
kept by identity. Keeps P6 (no long hold of the interpreter), S10 (strict decoding), S4-S6 (the
self-check runs before COMMITTED and again after reading).
May import: `encoding`, `verify`, `model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.consumption import read_log
from outlast.durable.encoding import encode_object, encode_value, join_array
from outlast.durable.files import Files
from outlast.durable.manifest import FoundCut, Manifest, TreeKind, sha256
from outlast.durable.packing import pack, unpack
from outlast.durable.prefixes import decode_prefixes
from outlast.durable.verify import (
    decode_intact,
    read_manifest,
    read_payload,
    verify_file,
    verify_inventory,
)
from outlast.errors import CorruptData, InvariantError
from outlast.model.cursor import DatasetOrder
from outlast.model.cut import Cut, check_cut
from outlast.model.groups import Group
from outlast.model.ids import GroupId
from outlast.rows import Row

_group_decoder = msgspec.json.Decoder(Group, strict=True)
_cut_decoder = msgspec.json.Decoder(Cut, strict=True)


class CutEncoder:
    """Encodes the cuts of one run, one at a time."""

    def __init__(self) -> None:
        self._known: dict[GroupId, tuple[Group, bytes]] = {}
        self._order: DatasetOrder | None = None

    def encode(self, cut: Cut) -> bytes:
        """Check `cut` and encode it. Raises InvariantError for a cut that must not be published:
        one that contradicts itself, or one that JSON cannot carry (a NaN reward)."""
        check_cut(cut, self._order_of(cut))
        known: dict[GroupId, tuple[Group, bytes]] = {}
        for group in cut.groups:
            known[group.id] = self._encoded(group)
        self._known = known
        groups = join_array([data for _, data in known.values()])
        self._expect_round_trip(cut)
        return pack(encode_object(cut, ready={"groups": groups}))

    def _encoded(self, group: Group) -> tuple[Group, bytes]:
        before = self._known.get(group.id)
        if before is not None and before[0] is group:
            return before
        data = encode_value(group)
        try:
            same = _group_decoder.decode(data) == group
        except msgspec.ValidationError:
            same = False
        if not same:
            raise InvariantError(
                f"group {group.id} does not survive its encoding; are its rewards finite?"
            )
        return group, data

    def _expect_round_trip(self, cut: Cut) -> None:
        """The fields beside the groups: few, but their floats may be NaN too."""
        rest = msgspec.structs.replace(cut, groups=())
        try:
            same = _cut_decoder.decode(encode_value(rest)) == rest
        except msgspec.ValidationError:
            same = False
        if not same:
            raise InvariantError(
                f"cut {cut.sequence} does not survive its encoding; are its step outcomes, "
                f"metrics and sampler state finite numbers?"
            )

    def _order_of(self, cut: Cut) -> DatasetOrder:
        order = self._order
        if order is None or (order.seed, order.size) != (cut.dataset_seed, cut.dataset_size):
            order = self._order = DatasetOrder(seed=cut.dataset_seed, size=cut.dataset_size)
        return order


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedCut:
    """A verified cut as the restore needs it."""

    cut: Cut
    manifest: Manifest
    fingerprint: bytes
    """fingerprint.json, whose digest is the manifest's."""
    recipe: bytes
    directory: PurePosixPath
    """Absolute directory of the tree."""
    prefixes: tuple[Row, ...]
    """Of unfinished attempts, exactly those that the cut names."""
    rows: PurePosixPath
    """Absolute directory for `DataPlane.load`; its files are verified."""


def read_cut(files: Files, path: PurePosixPath) -> Cut:
    """Unpack and strictly decode a state whose digest was verified."""
    where = str(path)
    return decode_intact(unpack(read_payload(files, path), where=where), Cut, where=where)


def load_cut(files: Files, run_dir: PurePosixPath, *, found: FoundCut) -> LoadedCut:
    """Verify everything of a cut but the trainer shards, and decode it. Changes nothing.

    Order: marker, manifest, inventory and sizes, digests, the consumption log it names, strict
    decoding, agreement with the manifest, self-check.
    Raises CorruptData for a proven mismatch (try the next cut), UnsupportedFormat for an intact cut
    of another format, DiskError for a failing disk.
    """
    directory = run_dir / found.path
    manifest = read_manifest(files, directory)
    verify_inventory(files, directory, manifest=manifest)
    prefix = "" if manifest.kind is TreeKind.SNAPSHOT else f"{names.ROLLOUT_STATE}/"
    for entry in manifest.files:
        if entry.name.startswith(prefix):
            verify_file(files, directory, entry=entry)
    read_log(files, run_dir / names.CONSUMPTION, position=manifest.log)
    base = directory / prefix
    cut = read_cut(files, base / names.STATE)
    _expect_agreement(cut, manifest, where=directory)
    try:
        check_cut(cut, DatasetOrder(seed=cut.dataset_seed, size=cut.dataset_size))
    except InvariantError as error:
        raise CorruptData(f"{directory} contradicts itself: {error}") from error
    prefixes: tuple[Row, ...] = ()
    if cut.prefixes:
        path = base / names.PREFIXES
        prefixes = decode_prefixes(read_payload(files, path), cut=cut, where=str(path))
    fingerprint = read_payload(files, base / names.FINGERPRINT)
    if sha256(fingerprint) != manifest.fingerprint:
        raise CorruptData(f"{directory}: fingerprint.json is not the one that MANIFEST.json names")
    return LoadedCut(
        cut=cut,
        manifest=manifest,
        fingerprint=fingerprint,
        recipe=read_payload(files, base / names.RECIPE),
        directory=directory,
        prefixes=prefixes,
        rows=base / names.ROWS,
    )


def _expect_agreement(cut: Cut, manifest: Manifest, *, where: PurePosixPath) -> None:
    pairs: dict[str, tuple[object, object]] = {
        "sequence": (cut.sequence, manifest.sequence),
        "incarnation": (cut.incarnation, manifest.incarnation),
        "parent": (cut.parent, manifest.parent),
        "trainer version": (cut.trainer_version, manifest.trainer_version),
        "history": (cut.history, manifest.history),
        "log position": (cut.log, manifest.log),
    }
    if manifest.kind is TreeKind.SNAPSHOT:
        pairs["anchor"] = (cut.anchor, manifest.anchor)
    for name, (state, listed) in pairs.items():
        if state != listed:
            raise CorruptData(f"{where}: {name} is {state} in the state, {listed} in MANIFEST.json")
