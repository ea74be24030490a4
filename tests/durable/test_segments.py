"""Segments: exact inventories, no write after link, nothing unsynced linked (A1, A5, S12)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.durable import segments as module
from outlast.durable.rowcodec import (
    END_OF_STREAM,
    HEADER,
    decode_batch,
    decode_segment,
    encode_rows,
)
from outlast.durable.segmentfile import INDEX, SegmentFile, read_saved
from outlast.durable.segments import Held, SegmentStore
from outlast.errors import CorruptData, DiskError, InvariantError
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.rows import Row, row_digest
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from tests.contracts.plane_contract import make_row
from tests.durable.disks import both_disks, make_disk
from tests.durable.stores import ROOT, digests, held, new_disk, new_store, save

# ------------------------------------------------------------------------------- codec


@st.composite
def rows(draw: st.DrawFn) -> Row:
    ints = st.integers(-(2**31), 2**31 - 1)
    length = draw(st.integers(0, 5))
    bits = st.integers(0, 2**32 - 1)  # every float32, NaN payloads and -0.0 included
    floats = np.array(draw(st.lists(bits, min_size=length, max_size=length)), np.uint32)
    return Row(
        key=AttemptKey(
            GroupId(draw(st.integers(0, 2**60))),
            SiblingIndex(draw(st.integers(0, 1000))),
            Incarnation(draw(st.integers(1, 2**40))),
            draw(st.integers(0, 1000)),
        ),
        prompt_ids=np.array(draw(st.lists(ints, max_size=4)), np.int32),
        response_ids=np.array(draw(st.lists(ints, min_size=length, max_size=length)), np.int32),
        logprobs=floats.view(np.float32),
        weight_versions=np.arange(length, dtype=np.int32),
        loss_mask=np.array(
            draw(st.lists(st.booleans(), min_size=length, max_size=length)), np.bool_
        ),
        reward=draw(st.floats(width=32)),
        mask_sample=draw(st.booleans()),
        extras=draw(st.dictionaries(st.text(max_size=3), st.floats(), max_size=2)),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=4))
def test_a1_rows_survive_the_codec_bit_for_bit(batch: list[Row]) -> None:
    message = bytes(encode_rows(batch))
    back = decode_batch(message, where="here")
    assert [row.key for row in back] == [row.key for row in batch]
    assert [row_digest(row) for row in back] == [row_digest(row) for row in batch]
    ((span, again),) = decode_segment(HEADER + message + END_OF_STREAM, where="here")
    assert (span.offset, span.length, span.rows) == (len(HEADER), len(message), len(batch))
    assert [row_digest(row) for row in again] == [row_digest(row) for row in batch]


def test_any_arrow_tool_reads_a_segment() -> None:
    message = bytes(encode_rows([make_row(1), make_row(2)]))
    table = pa.ipc.open_stream(HEADER + message + message + END_OF_STREAM).read_all()
    assert table.num_rows == 4
    assert table.column("response_ids")[0].as_py() == make_row(1).response_ids.tolist()


def test_what_is_no_segment_is_named_corrupt() -> None:
    message = bytes(encode_rows([make_row(1)]))
    for data in (b"", HEADER, HEADER + message, message + END_OF_STREAM):
        with pytest.raises(CorruptData, match="not a finished segment"):
            decode_segment(data, where="here")
    for data in (HEADER + message[:-30] + END_OF_STREAM, HEADER + b"x" * 40 + END_OF_STREAM):
        with pytest.raises(CorruptData, match="no readable record batches"):
            decode_segment(data, where="here")
    with pytest.raises(CorruptData, match="no readable record batch"):
        decode_batch(b"x" * 64, where="here")


# ------------------------------------------------------------------------------- store


@both_disks
def test_saved_inventory_is_exactly_what_was_asked_for(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    store = SegmentStore(files, root / "segments", incarnation=Incarnation(1))
    everything = held(0, 1, 2, 3, 4)
    store.append(list(everything.values()))
    wanted = {key: everything[key] for key in sorted(everything)[1:4]}
    files.mkdir(root / "rows")
    entries = store.save(wanted, root / "rows", link=True)
    assert {entry.name for entry in entries} == set(files.list(root / "rows"))
    other = SegmentStore(files, root / "other", incarnation=Incarnation(2))
    loaded = other.load(root / "rows", frozenset(wanted))
    assert digests(loaded) == digests(wanted)
    store.close()


def test_a_second_save_links_what_the_first_finished_and_recomputes_nothing() -> None:
    disk = new_disk()
    store, first, second = new_store(disk), held(1, 2), held(3)
    store.append(list(first.values()))
    one = save(disk, store, first, "a")
    store.append(list(second.values()))
    two = save(disk, store, first | second, "b")
    assert one == (INDEX, "seg_i000001_000001.arrow")
    assert two == (INDEX, "seg_i000001_000001.arrow", "seg_i000001_000002.arrow")
    before = disk.calls
    store.save(first | second, ROOT / _made(disk, "c"), link=True)
    assert disk.calls - before < 15, "an unchanged inventory costs links and an index"
    read_saved(disk, ROOT / "b")


def _made(disk: CrashDisk, name: str) -> str:
    disk.mkdir(ROOT / name)
    return name


def test_private_copies_share_no_inode_and_are_not_linked_when_adopted() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "linked")
    names = save(disk, store, everything, "private", link=False)
    assert not set(names) & set(disk.list(ROOT / "linked")) - {INDEX}
    other = new_store(disk, incarnation=2)
    other.load(ROOT / "private", frozenset(everything))
    other.adopt()
    assert disk.list(ROOT / "segments") == (), "a private copy was linked into segments/"
    assert all(other.place(key) is None for key in everything)
    again = save(disk, other, everything, "next")
    assert again == (INDEX, "seg_i000002_000001.arrow")


def test_where_links_are_impossible_rows_are_written_again() -> None:
    disk = new_disk(links=False)
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    other = new_store(disk, incarnation=2)
    assert digests(other.load(ROOT / "a", frozenset(everything))) == digests(everything)


def test_adoption_falls_back_to_memory_where_links_have_become_impossible() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    moved = CrashDisk(disk.visible(), links=False)
    other = new_store(moved, incarnation=2)
    other.load(ROOT / "a", frozenset(everything))
    other.adopt()
    assert moved.list(ROOT / "segments") == ()
    save(moved, other, everything, "b")


def test_adoption_links_the_restored_segments_and_sweeps_the_rest() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    store.append(list(held(3).values()))
    other = new_store(disk, incarnation=2)
    other.load(ROOT / "a", frozenset(everything))
    assert len(disk.list(ROOT / "segments")) == 2
    other.adopt()
    other.adopt()
    assert disk.list(ROOT / "segments") == ("seg_i000002_000001.arrow",)
    save(disk, other, everything, "b")
    name, old = ROOT / "b" / "seg_i000002_000001.arrow", ROOT / "a" / "seg_i000001_000001.arrow"
    assert disk.read(name) == disk.read(old)


def test_a_replaced_controller_cannot_touch_the_segments_of_a_newer_one() -> None:
    disk = new_disk()
    zombie, everything = new_store(disk), held(1, 2)
    zombie.append(list(everything.values()))
    save(disk, zombie, everything, "a")
    newer = new_store(disk, incarnation=2)
    newer.load(ROOT / "a", frozenset(everything))
    newer.adopt()
    newer.append(list(held(3).values()))
    standing = disk.list(ROOT / "segments")
    zombie.release(everything)
    late = new_store(disk)  # one that adopts its segments only now
    late.adopt()
    assert disk.list(ROOT / "segments") == standing
    disk.mkdir(ROOT / "z")
    with pytest.raises(DiskError, match="has another controller taken this run over"):
        save(disk, zombie_with_rows(disk), held(5), "z/rows")
    save(disk, newer, {**everything, **held(3)}, "b")


def zombie_with_rows(disk: CrashDisk) -> SegmentStore:
    """A store whose finished segment was swept by its successor."""
    zombie = new_store(disk, incarnation=1)
    zombie.append(list(held(5).values()))
    for name in disk.list(ROOT / "segments"):
        if name.startswith("seg_i000001"):
            disk.unlink(ROOT / "segments" / name)
    return zombie


def test_s12_segments_without_live_rows_go_away() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    store.release(everything)
    store.release(everything)
    assert disk.list(ROOT / "segments") == ()


def test_an_undeletable_dead_segment_is_tried_again() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    disk.fault = Fault(disk.calls, FaultKind.EIO)
    store.release(everything)
    assert disk.list(ROOT / "segments")
    store.release([])
    assert disk.list(ROOT / "segments") == ()


def test_mostly_dead_segments_are_rewritten_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(*range(1, 11))
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    keys = sorted(everything)
    store.release(keys[2:])
    kept = {key: everything[key] for key in keys[:2]}
    monkeypatch.setattr(module, "REWRITE_BYTES_MAX", 1)
    save(disk, store, kept, "b")
    assert disk.list(ROOT / "segments") == ("seg_i000001_000001.arrow",), "beyond the bound"
    monkeypatch.setattr(module, "REWRITE_BYTES_MAX", 1 << 20)
    only = {keys[0]: kept[keys[0]]}  # the other live row is read back from its segment
    names = save(disk, store, only, "c")
    assert names == (INDEX, "seg_i000001_000002.arrow")
    assert disk.list(ROOT / "segments") == ("seg_i000001_000002.arrow",)
    assert store.read(keys[1]).key == keys[1]


def test_rot_in_a_sparse_segment_does_not_stop_a_save() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(*range(1, 11), tokens=64)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    keys = sorted(everything)
    store.release(keys[2:])
    path = ROOT / "segments" / "seg_i000001_000001.arrow"
    for at in range(disk.stat(path).size // 3, disk.stat(path).size - 8, 8):
        disk.rot(path, at=at)
    spilled = {keys[0]: Held(None, everything[keys[0]].digest)}
    save(disk, store, spilled, "b")
    with pytest.raises(CorruptData):
        store.read(keys[0])


def test_a_segment_that_grows_large_is_finished_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT_BYTES_MAX", 1)
    monkeypatch.setattr(module, "BATCH_ROWS", 2)
    disk = new_disk()
    store, everything = new_store(disk), held(*range(5))
    store.append(list(everything.values()))
    assert len(disk.list(ROOT / "segments")) == 3
    first = sorted(everything)[0]
    assert store.settled([first, sorted(everything)[4]]) == {first}


def test_read_needs_a_place_and_settled_ignores_strangers() -> None:
    store = new_store(new_disk())
    (key,) = held(1)
    with pytest.raises(InvariantError, match="in no segment"):
        store.read(key)
    assert store.settled([key]) == frozenset()


def test_a_spilled_row_without_a_place_is_a_contradiction() -> None:
    disk = new_disk()
    (key,) = held(1)
    with pytest.raises(InvariantError, match="without a place"):
        save(disk, new_store(disk), {key: Held(None, "0" * 64)}, "a")


def test_a_stopped_writer_waits_for_the_next_save() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1, 2)
    disk.fault = Fault(disk.calls + 4, FaultKind.ENOSPC, persistent=True)
    store.append(list(everything.values()))
    assert store.stopped is not None
    calls = disk.calls
    store.append(list(held(3).values()))
    assert disk.calls == calls, "a stopped writer must not touch the disk"
    disk.fault = None
    save(disk, store, everything, "a")
    assert store.stopped is None
    store.close()
    new_store(disk).close()


def test_load_into_a_store_with_rows_is_a_contradiction() -> None:
    disk = new_disk()
    store, everything = new_store(disk), held(1)
    store.append(list(everything.values()))
    save(disk, store, everything, "a")
    with pytest.raises(InvariantError, match="holds rows already"):
        store.load(ROOT / "a", frozenset(everything))


def test_finished_segments_take_no_more_rows_and_unfinished_ones_are_not_listed() -> None:
    disk = new_disk()
    segment = SegmentFile(disk, ROOT / "seg")
    segment.start()
    with pytest.raises(InvariantError, match="before it is finished"):
        segment.entry()
    segment.finish()
    with pytest.raises(InvariantError, match="finished"):
        segment.append([make_row(1)])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", list(FaultKind))
def test_no_failing_call_ever_leads_to_a_linked_unsynced_segment(
    kind: FaultKind, persistent: bool
) -> None:
    """After the failure the next save holds every row, and a power cut does not change that."""
    failures = 0
    for at in range(60):
        disk = new_disk()
        store, first, second = new_store(disk), held(1, 2), held(3, 4)
        disk.fault = Fault(disk.calls + at, kind, persistent=persistent)
        store.append(list(first.values()))
        disk.guard()
        store.append(list(second.values()))
        failures += _failed_save(disk, store, first | second)
        disk.fault = None
        assert store.stopped is None or failures
        save(disk, store, first | second, "good")
        disk.fsync_dir(ROOT)
        disk.fsync_dir(ROOT.parent)
        for image in disk.ordered(cap=64):
            loaded = new_store(CrashDisk(image), incarnation=2).load(
                ROOT / "good", frozenset(first | second)
            )
            assert digests(loaded) == digests(first | second)
    assert failures >= 1


def _failed_save(disk: CrashDisk, store: SegmentStore, rows: dict[AttemptKey, Held]) -> int:
    try:
        save(disk, store, rows, "bad")
    except DiskError:
        return 1
    return 0
