"""The crash disk itself: what it may lose, what it must keep, and that it repeats itself."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest

from outlast.errors import DiskError, DiskFull
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_facts import Promises
from outlast.testing.crash_image import Image, rotten_images
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import short_script

ROOT = PurePosixPath("/")


def contents(images: list[Image]) -> set[bytes | None]:
    """What `/a` reads as in each tree; None where it is missing."""
    return {dict(image.signature()).get("/a") for image in images}


def written(*, fsync: bool, parent: bool) -> CrashDisk:
    disk = CrashDisk()
    writer = disk.create(ROOT / "a")
    writer.write(b"0123")
    if fsync:
        writer.fsync()
    if parent:
        disk.fsync_dir(ROOT)
    return disk


@pytest.mark.parametrize(
    ("fsync", "parent", "expected"),
    [
        (True, True, {b"0123"}),
        (True, False, {None, b"0123"}),
        (False, True, {b"", b"01", b"0123"}),
        (False, False, {None, b"", b"01", b"0123"}),
    ],
)
def test_only_what_was_synced_is_sure(
    fsync: bool, parent: bool, expected: set[bytes | None]
) -> None:
    disk = written(fsync=fsync, parent=parent)
    assert contents(list(disk.ordered())) == expected
    assert contents(list(disk.weak())) == expected
    assert contents([disk.visible()]) == {b"0123"}, "a process kill loses nothing"


def test_a_rename_without_payload_fsync_publishes_an_empty_file() -> None:
    """The fact behind the protocol: ext4 shows a zero-length file under the new name."""
    disk = written(fsync=False, parent=True)
    disk.rename(ROOT / "a", ROOT / "b")
    disk.fsync_dir(ROOT)
    assert {dict(image.signature())["/b"] for image in disk.ordered()} == {b"", b"01", b"0123"}


def test_ordered_keeps_prefixes_and_weak_any_subset() -> None:
    disk = CrashDisk()
    for name in "ab":
        disk.mkdir(ROOT / name)
    ordered = {tuple(image.dirs[0]) for image in disk.ordered()}
    weak = {tuple(image.dirs[0]) for image in disk.weak()}
    assert ordered == {(), ("a",), ("a", "b")}
    assert weak == ordered | {("b",)}


def test_a_failed_fsync_loses_the_pages_for_good() -> None:
    disk = CrashDisk()
    writer = disk.create(ROOT / "a")
    disk.fsync_dir(ROOT)
    writer.write(b"0123")
    disk.fault = Fault(disk.calls, FaultKind.EIO)
    with pytest.raises(DiskError):
        writer.fsync()
    disk.fault = None
    writer.fsync()
    assert b"" in contents(list(disk.ordered())), "the retried fsync lied"
    assert disk.read(ROOT / "a") == b"0123"


def test_faults_hit_what_they_say() -> None:
    disk = CrashDisk()
    disk.fault = Fault(1, FaultKind.SHORT_WRITE)
    writer = disk.create(ROOT / "a")
    with pytest.raises(DiskFull):
        writer.write(b"0123")
    assert disk.read(ROOT / "a") == b"01" and disk.faults_hit == 1
    disk.fault = Fault(0, FaultKind.ENOSPC, persistent=True)
    with pytest.raises(DiskFull):
        disk.mkdir(ROOT / "d")
    assert disk.list(ROOT) == ("a",), "reading needs no space"


def test_a_dead_life_cannot_touch_the_disk() -> None:
    class Dead(BaseException):
        pass

    def dead() -> None:
        raise Dead

    disk = CrashDisk()
    writer = disk.create(ROOT / "a")
    disk.guard = dead
    for call in (lambda: disk.list(ROOT), lambda: writer.write(b"x"), writer.fsync):
        with pytest.raises(Dead):
            call()
    assert contents([disk.kill().visible()]) == {b""}


def test_a_drawn_crash_repeats_itself_and_stays_among_the_enumerated_ones() -> None:
    disk = CrashDisk()
    life = Life(disk, Promises())
    life.start()
    short_script(life)
    drawn = [disk.crash(random.Random(seed)).visible().signature() for seed in range(40)]
    again = [disk.crash(random.Random(seed)).visible().signature() for seed in range(40)]
    assert drawn == again and len(set(drawn)) > 5


def test_rot_reaches_every_name_of_an_inode() -> None:
    disk = written(fsync=True, parent=True)
    disk.link(ROOT / "a", ROOT / "b")
    flips = [
        dict(image.signature()) for what, image in rotten_images(disk.visible()) if "flip" in what
    ]
    assert flips and all(tree["/a"] == tree["/b"] != b"0123" for tree in flips)
    missing = [
        dict(i.signature()) for what, i in rotten_images(disk.visible()) if "missing" in what
    ]
    assert [sorted(tree) for tree in missing] == [["/b"], ["/a"]]
