"""The consumption log: what a cut names is durable and proven, the rest is void (S1, S4)."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.consumption import ConsumptionLog, read_log
from outlast.errors import CorruptData, DiskError, Fenced, InvariantError, UnsupportedFormat
from outlast.model.cut import LogPosition
from outlast.model.groups import DropReason, PromptRef
from outlast.model.ids import GroupId, Incarnation, Step
from outlast.model.journal import Applied, Dropped, JournalRecord, Replayed
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from tests.durable.disks import Open, both_disks, make_disk

ONE = Incarnation(1)


def prompt(index: int) -> PromptRef:
    return PromptRef(dataset="d", epoch=0, index=index)


def records(count: int) -> list[JournalRecord]:
    made: list[JournalRecord] = []
    for i in range(count):
        made.append(
            Applied(
                step=Step(i + 1),
                groups=(GroupId(i),),
                refs=(prompt(i),),
                history="0" * 64,
                lengths=((i, 3),),
                masked=((),),
            )
        )
    made.append(
        Dropped(
            group=GroupId(99),
            ref=prompt(99),
            reason=DropReason.STALE,
            lengths=(7,),
            unfinished=1,
        )
    )
    made.append(Replayed(step=Step(1), outcome={"loss": 0.5}))
    return made


def crash_log() -> tuple[CrashDisk, PurePosixPath, ConsumptionLog]:
    disk, root = CrashDisk(), PurePosixPath("/c")
    return disk, root, ConsumptionLog(disk, root, incarnation=ONE, fence=Open())


@both_disks
def test_records_read_back_up_to_a_position(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    log = ConsumptionLog(files, root / "c", incarnation=ONE, fence=Open())
    empty = log.position
    assert read_log(files, root / "c", position=empty) == ()
    positions, written = [], records(3)
    for record in written:
        log.append(record)
        positions.append(log.position)
    log.sync(positions[1].length)
    log.append(written[0])
    log.sync(log.position.length)
    log.sync(0)
    for n, position in enumerate(positions):
        assert read_log(files, root / "c", position=position) == tuple(written[: n + 1])
    log.close()


def test_a_record_that_json_cannot_carry_is_refused_at_once() -> None:
    _, _, log = crash_log()
    with pytest.raises(InvariantError, match="floats finite"):
        log.append(Replayed(step=Step(1), outcome={"loss": float("nan")}))
    assert log.position.length == 0


def test_sync_beyond_what_was_appended_is_a_contradiction() -> None:
    _, _, log = crash_log()
    with pytest.raises(InvariantError, match="beyond"):
        log.sync(1)


def test_a_log_file_of_this_incarnation_that_exists_already_is_a_contradiction() -> None:
    disk, root, log = crash_log()
    disk.mkdir(root)
    disk.create(root / "inc_000001.log").close()
    log.append(records(1)[0])
    with pytest.raises(InvariantError, match="reused"):
        log.sync(log.position.length)


def test_a_fenced_log_touches_nothing() -> None:
    class Shut:
        def check(self) -> None:
            raise Fenced("a newer incarnation")

    disk, root = CrashDisk(), PurePosixPath("/c")
    log = ConsumptionLog(disk, root, incarnation=ONE, fence=Shut())
    log.append(records(1)[0])
    with pytest.raises(Fenced):
        log.sync(log.position.length)
    assert disk.list(PurePosixPath("/")) == ()


@pytest.mark.parametrize("kind", list(FaultKind))
def test_after_any_failing_call_the_log_is_written_anew(kind: FaultKind) -> None:
    """Never a retry on the file whose fsync failed: its pages may count as clean."""
    failures = 0
    for at in range(40):
        disk, root, log = crash_log()
        written = records(4)
        for record in written[:3]:
            log.append(record)
        log.sync(log.position.length)
        disk.fault = Fault(disk.calls + at, kind)
        for record in written[3:]:
            log.append(record)
        position = log.position
        try:
            log.sync(position.length)
        except DiskError:
            failures += 1
        disk.fault = None
        log.append(written[0])
        log.sync(log.position.length)
        for image in disk.ordered():
            after = CrashDisk(image)
            assert read_log(after, root, position=position) == tuple(written)
            assert len(read_log(after, root, position=log.position)) == len(written) + 1
    assert failures >= 1


def test_a_first_sync_that_fails_is_written_anew() -> None:
    for at in range(12):
        disk, root, log = crash_log()
        disk.fault = Fault(at, FaultKind.EIO)
        log.append(records(1)[0])
        try:
            log.sync(log.position.length)
        except DiskError:
            disk.fault = None
            log.sync(log.position.length)
        assert len(read_log(CrashDisk(disk.visible()), root, position=log.position)) == 1


def test_synced_bytes_that_are_gone_stop_the_run() -> None:
    disk, root, log = crash_log()
    log.append(records(1)[0])
    log.sync(log.position.length)
    disk.rot(root / "inc_000001.log", at=20)
    log.close()
    log.append(records(1)[0])
    with pytest.raises(DiskError, match="lost bytes"):
        log.sync(log.position.length)


def position_of(data: bytes, length: int | None = None) -> LogPosition:
    digest = hashlib.sha256(data).hexdigest()
    return LogPosition(
        incarnation=ONE, length=len(data) if length is None else length, digest=digest
    )


def frame(payload: bytes, *, crc: int | None = None) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload) if crc is None else crc) + payload


@pytest.mark.parametrize(
    ("data", "error", "match"),
    [
        (frame(b"{}", crc=1), CorruptData, "broken frame"),
        (frame(b"{}")[:-1], CorruptData, "broken frame"),
        (b"\0\0\0", CorruptData, "broken frame"),
        (frame(b'{"type":"later"}'), UnsupportedFormat, "unknown"),
        (frame(b"not json"), UnsupportedFormat, "unknown"),
    ],
)
def test_damage_and_unknown_records_are_told_apart(
    data: bytes, error: type[Exception], match: str
) -> None:
    disk, root, _ = crash_log()
    disk.mkdir(root)
    writer = disk.create(root / "inc_000001.log")
    writer.write(data)
    with pytest.raises(error, match=match):
        read_log(disk, root, position=position_of(data))


def test_a_short_missing_or_different_log_is_corrupt() -> None:
    disk, root, log = crash_log()
    position = position_of(b"x" * 10)
    with pytest.raises(CorruptData, match="missing"):
        read_log(disk, root, position=position)
    log.append(records(1)[0])
    log.sync(log.position.length)
    with pytest.raises(CorruptData, match="sha256"):
        read_log(disk, root, position=position)
    with pytest.raises(CorruptData, match="the cut names 10000"):
        read_log(disk, root, position=position_of(b"", length=10_000))
