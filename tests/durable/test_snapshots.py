"""Publishing, listing and verifying cuts on real run directories."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec
import pytest

from outlast.durable.cutcodec import CutEncoder, load_cut, read_cut
from outlast.durable.encoding import encode_array
from outlast.durable.inspection import CutReader
from outlast.durable.lineage import cut_state
from outlast.durable.listing import find_cut, read_run
from outlast.durable.manifest import (
    COMMITTED,
    MANIFEST,
    CutState,
    TreeKind,
    encode,
    sha256,
)
from outlast.durable.packing import pack, unpack
from outlast.durable.verify import read_manifest, verify_file
from outlast.errors import CorruptData, DiskError, InvariantError, UnsupportedFormat
from outlast.model.groups import StepRecord
from outlast.model.ids import GroupId, Sequence, Step, TrainerVersion
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_facts import RUN_DIR, Promises
from outlast.testing.crash_scenario import Life
from tests.durable.written import SNAPSHOT, forge, found, lived, overwrite, two_snapshots

# ------------------------------------------------------------------------------ reading


def test_a_run_directory_is_listed_whole() -> None:
    disk, _ = lived()
    listing = read_run(disk, RUN_DIR, verify="payload")
    assert [str(cut.path) for cut in listing.cuts] == ["snapshots/snapshot_000002", "step_000001"]
    assert all(cut.defect is None and cut.bytes > 0 for cut in listing.cuts)
    assert [cut_state(listing, cut) for cut in listing.cuts] == [CutState.VALID] * 2
    assert listing.highest_sequence == 3 and listing.debris == () and listing.strangers == ()
    names = read_run(disk, RUN_DIR, verify="names")
    assert all(cut.manifest is None and cut.defect is None for cut in names.cuts)
    assert names.highest_sequence == 3


def test_a_missing_directory_is_an_empty_listing() -> None:
    listing = read_run(CrashDisk(), RUN_DIR, verify="payload")
    assert listing.run is None and listing.cuts == () and listing.highest_sequence == 0


def test_strangers_debris_and_odd_names_are_told_apart() -> None:
    disk, _ = lived()
    for name in ("notes", "step_7", "tmp_step_000009_s000041", "stale_step_000001_i000001"):
        disk.mkdir(RUN_DIR / name)
    disk.mkdir(RUN_DIR / "snapshots" / "snapshot_000009.bak")
    disk.mkdir(RUN_DIR / "snapshots" / "trash_000040")
    disk.create(RUN_DIR / "incarnations" / "readme.txt").close()
    listing = read_run(disk, RUN_DIR, verify="names")
    assert listing.strangers == ("notes", "step_7")
    assert {str(path) for path in listing.debris} == {
        "tmp_step_000009_s000041",
        "snapshots/trash_000040",
    }
    assert len(listing.cuts) == 2
    assert listing.highest_sequence == 42, "41 was spent; the empty stale tree may have spent one"


@pytest.mark.parametrize("name", [MANIFEST, COMMITTED, "state.json.zst", "rows/index.json.zst"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "emptied"])
def test_p3_damage_is_found_and_never_loaded(name: str, damage: str) -> None:
    disk, _ = lived(two_snapshots)
    path = SNAPSHOT / name
    data = disk.read(path)
    if damage == "flipped":
        disk.rot(path, at=len(data) // 2)
    else:
        disk.unlink(path)
    if damage in ("truncated", "emptied"):
        disk.create(path).write(data[: len(data) // 2] if damage == "truncated" else b"")
    cut = found(disk, "snapshots/snapshot_000002")
    assert cut.manifest is None and cut.defect is not None
    assert name.rsplit("/", maxsplit=1)[-1] in cut.defect or MANIFEST in cut.defect
    assert cut_state(read_run(disk, RUN_DIR, verify="payload"), cut) is CutState.CORRUPT
    with pytest.raises(CorruptData):
        load_cut(disk, RUN_DIR, found=cut)
    after = Life(disk.kill(), Promises(), pid=2)
    after.restore()
    assert after.loaded is not None and after.loaded.cut.sequence == 1, "the older one is used"


def test_p4_an_io_error_is_never_taken_for_corruption() -> None:
    disk, _ = lived()
    calls = disk.calls
    read_run(disk, RUN_DIR, verify="payload")
    spent = disk.calls - calls
    for at in range(spent):
        disk.fault = Fault(disk.calls + at, FaultKind.EIO)
        with pytest.raises(DiskError):
            read_run(disk, RUN_DIR, verify="payload")
    disk.fault = None


def test_s10_intact_state_of_another_format_is_refused_not_skipped() -> None:
    disk, _ = lived()
    forge(disk, SNAPSHOT, format=2)
    with pytest.raises(UnsupportedFormat, match="format 2"):
        read_run(disk, RUN_DIR, verify="manifest")
    data = b'{"format":1,"new_field":true}\n'
    overwrite(disk, SNAPSHOT / MANIFEST, data)
    overwrite(disk, SNAPSHOT / COMMITTED, sha256(data).encode() + b"\n")
    with pytest.raises(UnsupportedFormat, match="intact, but not"):
        read_manifest(disk, SNAPSHOT)


def test_renamed_trees_extra_files_and_sizes_are_corrupt() -> None:
    disk, _ = lived()
    disk.rename(SNAPSHOT, SNAPSHOT.parent / "snapshot_000007")
    assert "renamed by hand" in str(found(disk, "snapshots/snapshot_000007").defect)
    disk, _ = lived()
    disk.create(SNAPSHOT / "extra").close()
    assert "not listed" in str(found(disk, "snapshots/snapshot_000002").defect)
    disk, _ = lived()
    data = disk.read(SNAPSHOT / "recipe.yaml")
    overwrite(disk, SNAPSHOT / "recipe.yaml", data + b"more")
    cut = found(disk, "snapshots/snapshot_000002", verify="manifest")
    assert "bytes, MANIFEST says" in str(cut.defect)


def test_a_listed_file_that_vanishes_while_it_is_read_is_corrupt() -> None:
    disk, _ = lived()
    manifest = read_manifest(disk, SNAPSHOT)
    disk.unlink(SNAPSHOT / "recipe.yaml")
    with pytest.raises(CorruptData, match="missing"):
        verify_file(
            disk, SNAPSHOT, entry=next(e for e in manifest.files if e.name == "recipe.yaml")
        )


def test_a_tree_that_retention_takes_away_while_listing_is_passed_over() -> None:
    disk, _ = lived()
    gone = find_cut(
        disk,
        RUN_DIR,
        path=PurePosixPath("snapshots/snapshot_000001"),
        kind=TreeKind.SNAPSHOT,
        number=1,
        run=None,
        verify="manifest",
    )
    assert gone is None


def test_damaged_run_records_refuse_the_directory() -> None:
    for name, match in (
        ("run.json", "own checksum"),
        ("incarnations/000001.json", "own checksum"),
        ("bootstrap/anchor.json", "own checksum"),
    ):
        disk, _ = lived()
        disk.rot(RUN_DIR / name, at=12)
        with pytest.raises(CorruptData, match=match):
            read_run(disk, RUN_DIR, verify="names")
    disk, _ = lived()
    disk.unlink(RUN_DIR / "run.json")
    with pytest.raises(CorruptData, match=r"run\.json is missing"):
        read_run(disk, RUN_DIR, verify="names")
    disk, _ = lived()
    disk.rename(RUN_DIR / "incarnations/000001.json", RUN_DIR / "incarnations/000002.json")
    with pytest.raises(CorruptData, match="is about incarnation 1"):
        read_run(disk, RUN_DIR, verify="names")


def test_a5_numbers_of_damaged_trees_are_not_given_out_again() -> None:
    disk, _ = lived()
    overwrite(disk, RUN_DIR / "step_000001" / MANIFEST, b"rot")
    assert read_run(disk, RUN_DIR, verify="names").highest_sequence == 3, "its state tells"
    overwrite(disk, RUN_DIR / "step_000001/rollout_state/state.json.zst", b"\xff")
    assert read_run(disk, RUN_DIR, verify="names").highest_sequence == 3, "2 seen, 1 unknown"


# ------------------------------------------------------------------------------ loading


def test_what_is_loaded_agrees_with_its_manifest_and_with_itself() -> None:
    for changes, match in (
        ({"history": "f" * 64}, "history is"),
        ({"fingerprint": "f" * 64}, r"fingerprint\.json is not the one"),
    ):
        disk, _ = lived()
        forge(disk, SNAPSHOT, **changes)
        with pytest.raises(CorruptData, match=match):
            load_cut(disk, RUN_DIR, found=found(disk, "snapshots/snapshot_000002"))


def test_a_cut_that_contradicts_itself_is_corrupt() -> None:
    disk, _ = lived()
    cut = read_cut(disk, SNAPSHOT / "state.json.zst")
    state = pack(encode(msgspec.structs.replace(cut, groups=cut.groups[1:])))
    overwrite(disk, SNAPSHOT / "state.json.zst", state)
    manifest = read_manifest(disk, SNAPSHOT)
    files = tuple(
        msgspec.structs.replace(e, size=len(state), sha256=sha256(state))
        if e.name == "state.json.zst"
        else e
        for e in manifest.files
    )
    forge(disk, SNAPSHOT, files=files)
    with pytest.raises(CorruptData, match="contradicts itself: S4"):
        load_cut(disk, RUN_DIR, found=found(disk, "snapshots/snapshot_000002"))


def test_the_reader_names_what_is_wrong_with_a_candidate() -> None:
    disk, _ = lived()
    reader = CutReader(disk, RUN_DIR)
    step = found(disk, "step_000001")
    assert reader.inspector.verify(step) is None
    assert reader.inspector.fingerprint(step).digest == reader.loaded(step).manifest.fingerprint
    disk.rot(RUN_DIR / "step_000001/trainer/rank_0/shard_0.bin", at=3)
    assert "shard_0.bin" in str(CutReader(disk, RUN_DIR).inspector.verify(step))


# ------------------------------------------------------------------------------ encoding


def test_state_json_is_the_canonical_encoding_and_unchanged_groups_are_not_encoded_again() -> None:
    _, life = lived()
    cut = life.promises.cuts[2]
    encoder = CutEncoder()
    first = encoder.encode(cut)
    assert unpack(first, where="state") == encode(cut)
    assert encoder.encode(cut) == first
    other = life.promises.cuts[1]
    assert unpack(encoder.encode(other), where="state") == encode(other)
    assert encode_array(list(range(1000))) == msgspec.json.encode(list(range(1000)))


def test_s10_a_number_that_json_cannot_carry_is_refused_before_it_is_written() -> None:
    _, life = lived()
    cut, nan = life.promises.cuts[2], float("nan")
    group = msgspec.structs.replace(cut.groups[0], trained_rewards=(nan,))
    with pytest.raises(InvariantError, match="rewards finite"):
        CutEncoder().encode(msgspec.structs.replace(cut, groups=(group, *cut.groups[1:])))
    with pytest.raises(InvariantError, match="finite numbers"):
        CutEncoder().encode(msgspec.structs.replace(cut, tokens_per_s=nan))


def test_s6_a_contradictory_cut_is_never_published() -> None:
    disk, life = lived()
    cut = life.promises.cuts[2]
    record = StepRecord(
        step=Step(1), groups=(GroupId(1),), chunks=(1,), rows=(), history="0" * 64, outcome={}
    )
    bad = msgspec.structs.replace(cut, sequence=Sequence(9), applied_steps=(record,))
    tree = life.publisher.open_snapshot(Sequence(9))
    with pytest.raises(InvariantError, match="S1"):
        life.publisher.publish_snapshot(tree, cut=bad, rows=(), fingerprint=b"{}", recipe=b"")
    tree.abandon()
    assert disk.list(RUN_DIR / "snapshots") == ("snapshot_000002",)


# ---------------------------------------------------------------------------- publishing


def test_a_used_sequence_and_a_step_of_this_lineage_are_never_replaced() -> None:
    disk, life = lived()
    life.sequence = 2
    with pytest.raises(InvariantError, match="sequence 2 was used before"):
        life.snapshot()
    life.sequence = 10
    before = life.state.anchor
    life.state.anchor = msgspec.structs.replace(before, version=TrainerVersion(0))
    with pytest.raises(InvariantError, match="never replaced"):
        life.step(1)
    assert found(disk, "step_000001").defect is None


def test_an_off_lineage_step_makes_room_and_stays_reachable() -> None:
    """Known failure 50: a directory left under the name of a step must not stop its next save."""
    disk, _ = lived()
    disk.rot(RUN_DIR / "step_000001/rollout_state/state.json.zst", at=9)
    disk = disk.kill()
    life = Life(disk, Promises(), pid=2)
    life.start()
    assert life.loaded is not None and life.loaded.cut.sequence == 2
    life.step(1)
    assert disk.exists(RUN_DIR / "stale_step_000001_i000002")
    listing = read_run(disk, RUN_DIR, verify="payload")
    step = next(c for c in listing.cuts if c.kind is TreeKind.TRAINER_CHECKPOINT)
    assert step.defect is None and step.manifest is not None and step.manifest.incarnation == 2
    assert step.manifest.sequence == 4, "the sequence in the stale tree is not used again"


def test_unlisted_and_doubly_written_files_are_contradictions() -> None:
    disk, life = lived()
    tree = life.publisher.open_snapshot(Sequence(20))
    tree.write("a", b"1")
    with pytest.raises(InvariantError, match="written twice"):
        tree.add("rows/..", ())
        tree.write("b", b"2")
        tree.add("", [])
        tree._record(tree.entries[0])
    disk.create(tree.directory / "stray").close()
    manifest = read_manifest(disk, SNAPSHOT)
    with pytest.raises(InvariantError, match="not both written and listed"):
        tree.commit(manifest, SNAPSHOT.parent / "snapshot_000020")
    tree.abandon()
    assert not disk.exists(tree.directory)
