"""Lock, adoption, fencing and ends: one owner at a time, numbers never return (S7, A5)."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.lineage import adopt, next_incarnation, write_end
from outlast.durable.listing import read_run
from outlast.durable.lock import LockContent, acquire
from outlast.durable.manifest import IncarnationRecord, RunRecord, encode
from outlast.durable.publish import publish_file, replace_file
from outlast.durable.sealed import seal, unseal
from outlast.errors import CorruptData, DiskError, Fenced, LockHeld, UnsupportedFormat
from outlast.model.ids import Incarnation, Sequence
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_facts import RUN_DIR, Promises
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import short_script
from outlast.world import Identity, World
from tests.durable.disks import both_disks, make_disk, world

ROOT = PurePosixPath("/run")


def elsewhere(*, wall: float = 1_700_000_000.0) -> World:
    class Clock:
        def monotonic(self) -> float:
            return 0.0

        def wall(self) -> float:
            return wall

    base = world(pid=9)
    return World(
        clock=Clock(), offload=base.offload, random=base.random, identity=Identity("there", 9)
    )


def empty() -> CrashDisk:
    disk = CrashDisk()
    disk.mkdir(ROOT)
    return disk


# -------------------------------------------------------------------------------- lock


@both_disks
def test_a_held_lock_is_refused_naming_its_holder(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    lock = acquire(files, root, world=world(pid=7))
    with pytest.raises(LockHeld, match="pid 7 on host here, incarnation not yet adopted"):
        acquire(files, root, world=world(pid=8))
    lock.beat(Incarnation(3))
    lock.beat()
    with pytest.raises(LockHeld, match="incarnation 3"):
        acquire(files, root, world=world(pid=8), take_over=True)
    lock.release()
    acquire(files, root, world=world(pid=8)).release()


def test_a_torn_content_is_no_obstacle_and_names_nobody() -> None:
    disk = empty()
    held = disk.try_lock(ROOT / "lock")
    assert held is not None
    held.write(b'{"host": ')
    with pytest.raises(LockHeld, match="no readable name"):
        acquire(disk, ROOT, world=world())
    held.release()
    acquire(disk, ROOT, world=world())


def test_a_fresh_heartbeat_of_another_host_is_respected_unless_taken_over() -> None:
    """flock may not reach across hosts: the disk forgets the lock, the content stays."""
    disk = empty()
    acquire(disk, ROOT, world=elsewhere())
    shared = disk.kill()
    with pytest.raises(LockHeld, match="pid 9 on host there"):
        acquire(shared, ROOT, world=world())
    acquire(shared.kill(), ROOT, world=world(), take_over=True)
    acquire(shared.kill(), ROOT, world=elsewhere(), take_over=False)


@pytest.mark.parametrize("ended", [True, False])
def test_a_stale_heartbeat_or_an_end_record_frees_the_directory(ended: bool) -> None:
    disk = empty()
    age = 10.0 if ended else 100.0
    lock = acquire(disk, ROOT, world=elsewhere(wall=1_700_000_000.0 - age))
    lock.beat(Incarnation(1))
    disk.mkdir(ROOT / "incarnations")
    if ended:
        write_end(disk, ROOT, number=Incarnation(1), reason="done", last_cut=None, ended=0.0)
    acquire(disk.kill(), ROOT, world=world())


def test_a_running_incarnation_elsewhere_without_an_end_is_respected() -> None:
    disk = empty()
    acquire(disk, ROOT, world=elsewhere()).beat(Incarnation(1))
    with pytest.raises(LockHeld):
        acquire(disk.kill(), ROOT, world=world())


def test_lock_content_is_one_record() -> None:
    content = LockContent(host="h", pid=1, incarnation=None, heartbeat=0.5)
    assert b'"host":"h"' in encode(content)


# ---------------------------------------------------------------------------- adoption


def test_adoption_numbers_grow_and_carry_what_was_restored() -> None:
    disk, promises = CrashDisk(), Promises()
    life = Life(disk, promises)
    life.start()
    short_script(life)
    life.end()
    life2 = Life(disk, promises, pid=2)
    life2.start()
    listing = read_run(disk, RUN_DIR, verify="manifest")
    first, second = listing.incarnations
    assert (first.number, second.number) == (1, 2)
    assert first.restored_from is None and first.restored_log is None
    assert second.restored_from == 3 and second.restored_log is not None
    assert second.first_sequence == listing.highest_sequence + 1 == 4
    assert [end.last_cut for end in listing.ends] == [3]
    assert next_incarnation(listing) == 3
    assert listing.run is not None and len(listing.run.run) == 16


def test_two_controllers_cannot_adopt_the_same_number() -> None:
    disk = empty()
    listing = read_run(disk, ROOT, verify="names")
    adopt(disk, ROOT, listing=listing, restored=None, world=world())
    listing = read_run(disk, ROOT, verify="names")
    adopt(disk, ROOT, listing=listing, restored=None, world=world(pid=2))
    with pytest.raises(Fenced, match="created by another controller"):
        adopt(disk, ROOT, listing=listing, restored=None, world=world(pid=3))


def test_a_replaced_controller_publishes_retains_and_logs_nothing_more() -> None:
    disk, promises = CrashDisk(), Promises()
    old = Life(disk, promises)
    old.start()
    for _ in range(2):
        old.draw(1)
        old.snapshot()
    assert old.lock is not None
    old.lock.release()  # a lock that does not reach across hosts
    Life(disk, promises, pid=2).start()
    before = disk.visible().signature()
    for forbidden in (
        old.snapshot,
        lambda: old.step(1),
        lambda: old.publisher.retain_snapshots(keep_latest_k=1),
        lambda: old.log.sync(old.log.position.length),
    ):
        with pytest.raises(Fenced, match="incarnation 2 has taken over"):
            forbidden()
    assert disk.visible().signature() == before


def test_being_fenced_in_the_middle_of_a_publication_leaves_the_tree_to_the_new_owner() -> None:
    disk, promises = CrashDisk(), Promises()
    life = Life(disk, promises)
    life.start()
    life.draw(1)
    tree = life.publisher.open_snapshot(Sequence(life.sequence))
    publish_file(disk, RUN_DIR / "incarnations" / "000002.json", data=b"x")
    tree.abandon()
    assert disk.exists(tree.directory), "an abandoned tree was touched after the take-over"


def test_an_end_is_written_once() -> None:
    disk = empty()
    disk.mkdir(ROOT / "incarnations")
    for reason in ("done", "again"):
        write_end(disk, ROOT, number=Incarnation(1), reason=reason, last_cut=None, ended=1.0)
    (end,) = read_run(disk, ROOT, verify="names").ends
    assert end.reason == "done"


# ------------------------------------------------------------------- single-file records


def record() -> RunRecord:
    return RunRecord(format=1, run="abc", created=1.0)


def test_a_sealed_record_reads_back_and_any_flip_is_found() -> None:
    data = seal(record())
    assert unseal(data, RunRecord, where="run.json") == record()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(CorruptData, match="own checksum"):
            unseal(flipped, RunRecord, where="run.json")
    for short in (b"", data[:10], data + b"x"):
        with pytest.raises(CorruptData):
            unseal(short, RunRecord, where="run.json")
    with pytest.raises(UnsupportedFormat, match="intact, but not"):
        unseal(data, IncarnationRecord, where="000001.json")


@pytest.mark.parametrize("links", [True, False])
def test_publish_file_is_exclusive_with_and_without_links(links: bool) -> None:
    disk = CrashDisk(links=links)
    path = PurePosixPath("/record")
    disk.create(PurePosixPath("/tmp_0_record")).close()  # left over from a crash
    publish_file(disk, path, data=b"one")
    with pytest.raises(FileExistsError):
        publish_file(disk, path, data=b"two")
    assert disk.read(path) == b"one"
    assert disk.list(PurePosixPath("/")) == ("record", "tmp_0_record")
    replace_file(disk, path, data=b"three")
    assert disk.read(path) == b"three"


def test_publish_file_leaves_a_whole_record_or_none_at_every_failing_call() -> None:
    for at in range(10):
        disk = CrashDisk()
        disk.fault = Fault(at, FaultKind.SHORT_WRITE)
        try:
            publish_file(disk, PurePosixPath("/record"), data=b"content")
        except DiskError:
            assert disk.list(PurePosixPath("/")) == ()
            continue
        assert disk.read(PurePosixPath("/record")) == b"content"
