"""The index of a saved inventory: what contradicts it is named, and nothing is loaded."""

from __future__ import annotations

import msgspec
import pytest

from outlast.durable.packing import pack, unpack
from outlast.durable.segmentfile import INDEX, SegmentIndex, read_saved
from outlast.durable.segments import Held
from outlast.errors import CorruptData, UnsupportedFormat
from outlast.model.ids import AttemptKey
from outlast.testing.crash_disk import CrashDisk
from tests.durable.stores import ROOT, held, new_disk, new_store, save


def saved_disk() -> tuple[CrashDisk, dict[AttemptKey, Held]]:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2, 3)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    return disk, everything


def rewrite(disk: CrashDisk, **changes: object) -> None:
    path = ROOT / "a" / INDEX
    index = msgspec.json.decode(unpack(disk.read(path), where=INDEX), type=SegmentIndex)
    changed = msgspec.structs.replace(index, **changes)
    disk.unlink(path)
    disk.create(path).write(pack(msgspec.json.encode(changed)))


def test_an_index_that_contradicts_its_segments_is_corrupt() -> None:
    disk, _ = saved_disk()
    packed = disk.read(ROOT / "a" / INDEX)
    index = msgspec.json.decode(unpack(packed, where=INDEX), type=SegmentIndex)
    first = index.rows[0]
    for rows, match in (
        ((msgspec.structs.replace(first, segment="seg_x"),), "unlisted segment"),
        ((msgspec.structs.replace(first, batch=7),), "is not row"),
        ((msgspec.structs.replace(first, row=1),), "is not row"),
        ((msgspec.structs.replace(first, digest="0" * 64),), "is not row"),
        ((first, first), "stands twice"),
    ):
        rewrite(disk, rows=rows)
        with pytest.raises(CorruptData, match=match):
            read_saved(disk, ROOT / "a")


def test_missing_truncated_and_foreign_files_are_named() -> None:
    for name, match in ((INDEX, "missing"), ("seg_i000001_000001.arrow", "missing")):
        disk, _ = saved_disk()
        disk.unlink(ROOT / "a" / name)
        with pytest.raises(CorruptData, match=match):
            read_saved(disk, ROOT / "a")
    disk, _ = saved_disk()
    rewrite(disk, format=2)
    with pytest.raises(UnsupportedFormat):
        read_saved(disk, ROOT / "a")
    disk, _ = saved_disk()
    path = ROOT / "a" / "seg_i000001_000001.arrow"
    data = disk.read(path)
    disk.unlink(path)
    disk.create(path).write(data[:-9])
    with pytest.raises(CorruptData, match="bytes, expected"):
        read_saved(disk, ROOT / "a")


def test_the_inventory_must_be_the_one_that_the_cut_names() -> None:
    disk, everything = saved_disk()
    with pytest.raises(CorruptData, match="missing"):
        new_store(disk, incarnation=2).load(ROOT / "a", frozenset(everything) | set(held(9)))
