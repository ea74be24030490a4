"""S10 for every record on disk: no field may be missing, made up, misspelt or of another kind.

A field with a default is one that a writer may forget, and nobody notices; a record that takes
unknown fields is one that a newer release may fill in vain.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from outlast.durable.cutcodec import load_cut
from outlast.durable.fingerprint import Fingerprint
from outlast.durable.lock import LockContent
from outlast.durable.manifest import (
    BootstrapRecord,
    IncarnationEnd,
    IncarnationRecord,
    Manifest,
    RunRecord,
    sha256,
)
from outlast.durable.packing import pack, unpack
from outlast.durable.segmentfile import SegmentIndex
from outlast.durable.verify import read_manifest
from outlast.errors import UnsupportedFormat
from outlast.model.cut import Cut
from outlast.model.journal import Applied, Dropped, Replayed
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import RUN_DIR
from tests.durable.written import SNAPSHOT, forge, found, lived, overwrite

ROOTS: tuple[type[msgspec.Struct], ...] = (
    *(Cut, Manifest, RunRecord, IncarnationRecord, IncarnationEnd, BootstrapRecord),
    *(Fingerprint, LockContent, SegmentIndex, Applied, Dropped, Replayed),
)


def inside(kind: Any) -> Iterator[type[msgspec.Struct]]:
    """Records that a field of this type may hold."""
    kind = getattr(kind, "__supertype__", kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from inside(hint)
    elif isinstance(kind, types.GenericAlias | types.UnionType) or typing.get_args(kind):
        for part in typing.get_args(kind):
            yield from inside(part)


RECORDS = sorted({r for root in ROOTS for r in inside(root)}, key=lambda record: record.__name__)
EACH = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)


def test_the_walk_reaches_what_matters() -> None:
    names = {record.__name__ for record in RECORDS}
    assert {"Receipt", "Attempt", "Sibling", "Group", "PromptRef", "StepRecord"} <= names
    assert {"CursorState", "SamplerState", "LogPosition", "FileEntry", "IndexEntry"} <= names


@EACH
def test_every_field_is_required(record: type[msgspec.Struct]) -> None:
    optional = [field.name for field in msgspec.structs.fields(record) if not field.required]
    assert optional == []


@EACH
def test_unknown_fields_are_refused(record: type[msgspec.Struct]) -> None:
    assert record.__struct_config__.forbid_unknown_fields
    assert record.__struct_config__.frozen


def rewritten(disk: CrashDisk, old: bytes, new: bytes) -> None:
    """Another state under digests that agree with it: what a newer or broken writer would leave."""
    path = SNAPSHOT / "state.json.zst"
    state = unpack(disk.read(path), where="state")
    assert old in state
    data = pack(state.replace(old, new, 1))
    overwrite(disk, path, data)
    files = tuple(
        msgspec.structs.replace(entry, size=len(data), sha256=sha256(data))
        if entry.name == path.name
        else entry
        for entry in read_manifest(disk, SNAPSHOT).files
    )
    forge(disk, SNAPSHOT, files=files)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"state":"buffered"', b'"state":"weird"', "weird"),
        (b',"mask_sample":false', b"", "mask_sample"),
        (b'"mask_sample":false', b'"mask_smaple":false', "mask_smaple"),
        (b'"level":"sibling"', b'"level":"siblings"', "siblings"),
        (b'"exhausted":false', b'"exhausted":null', "exhausted"),
    ],
)
def test_an_intact_state_with_a_foreign_record_is_refused_by_name(
    old: bytes, new: bytes, says: str
) -> None:
    disk, _ = lived()
    rewritten(disk, old, new)
    with pytest.raises(UnsupportedFormat) as caught:
        load_cut(disk, RUN_DIR, found=found(disk, "snapshots/snapshot_000002"))
    assert says in str(caught.value) and "state.json" in str(caught.value)
