"""`MemoryPlane` passes the contract of its port on a real disk and on the crash disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path, PurePosixPath

import pytest

from outlast.adapters.planes.memory import MemoryPlane
from outlast.durable.files import Files, PosixFiles
from outlast.errors import CorruptData, DiskFull, InvariantError
from outlast.model.ids import Incarnation
from outlast.rows import row_digest
from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.world import P, R, ThreadOffload
from tests.contracts.plane_contract import check_plane, keys_of, make_row, stored_digest


class Inline:
    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return work(*args, **kwargs)


@pytest.fixture
def offload() -> Iterator[ThreadOffload]:
    threads = ThreadOffload()
    yield threads
    threads.close()


def crash_disk(*, links: bool = True) -> tuple[CrashDisk, PurePosixPath]:
    disk, root = CrashDisk(links=links), PurePosixPath("/run")
    disk.mkdir(root)
    return disk, root


def maker(
    files: Files, root: PurePosixPath, offload: ThreadOffload | Inline
) -> Callable[[], MemoryPlane]:
    numbers = count(1)

    def make() -> MemoryPlane:
        number = Incarnation(next(numbers))
        return MemoryPlane(files, root / "segments", incarnation=number, offload=offload)

    return make


def test_contract_on_a_real_disk(tmp_path: Path, offload: ThreadOffload) -> None:
    files, root = PosixFiles(), PurePosixPath(tmp_path)
    asyncio.run(check_plane(maker(files, root, offload), files, root))


@pytest.mark.parametrize("links", [True, False])
def test_contract_on_the_crash_disk(links: bool) -> None:
    disk, root = crash_disk(links=links)
    asyncio.run(check_plane(maker(disk, root, Inline()), disk, root))


def test_p1_a_full_disk_refuses_the_save_and_loses_no_row() -> None:
    async def scene() -> None:
        disk, root = crash_disk()
        plane = maker(disk, root, Inline())()
        rows = [make_row(i) for i in range(4)]
        disk.fault = Fault(0, FaultKind.ENOSPC, persistent=True)
        digests = await plane.put(rows)
        assert [row_digest(r) for r in await plane.get([r.key for r in rows])] == list(digests)
        handle = plane.freeze()
        with pytest.raises(DiskFull):
            await plane.save(handle, keys=keys_of(rows), directory=Path(root / "full"), link=True)
        disk.fault = None
        await plane.save(handle, keys=keys_of(rows), directory=Path(root / "space"), link=True)
        other = maker(disk, root, Inline())()
        await other.load(Path(root / "space"), keys_of(rows))
        assert [row_digest(r) for r in await other.get([r.key for r in rows])] == list(digests)

    asyncio.run(scene())


def test_spilled_rows_read_back_verified_and_rot_is_never_used() -> None:
    async def scene() -> None:
        disk, root = crash_disk()
        plane = maker(disk, root, Inline())()
        rows = [make_row(i) for i in range(1, 4)]
        await plane.put(rows)
        keys = [row.key for row in rows]
        assert await plane.spill(keys) == 0, "rows of an open segment must stay in memory"
        handle = plane.freeze()
        await plane.save(handle, keys=keys_of(rows), directory=Path(root / "a"), link=True)
        handle.close()
        assert await plane.spill(keys) == sum(row.nbytes for row in rows)
        assert await plane.spill(keys) == 0
        back = await plane.get(keys)
        assert [row_digest(row) for row in back] == [stored_digest(row) for row in rows]
        handle = plane.freeze()
        await plane.save(handle, keys=keys_of(rows), directory=Path(root / "b"), link=False)
        handle.close()
        (name,) = disk.list(root / "segments")
        segment = root / "segments" / name
        for at in range(disk.stat(segment).size // 2, disk.stat(segment).size - 8, 8):
            disk.rot(segment, at=at)
        with pytest.raises(CorruptData):
            await plane.get(keys)

    asyncio.run(scene())


def test_s12_released_segments_go_away_once_no_handle_pins_them() -> None:
    async def scene() -> None:
        disk, root = crash_disk()
        plane = maker(disk, root, Inline())()
        rows = [make_row(i) for i in range(3)]
        await plane.put(rows)
        handle = plane.freeze()
        await plane.save(handle, keys=keys_of(rows), directory=Path(root / "a"), link=True)
        await plane.release([row.key for row in rows])
        assert disk.list(root / "segments"), "a pinned segment was removed"
        handle.close()
        await plane.release([])
        assert disk.list(root / "segments") == ()

    asyncio.run(scene())


def test_a_cancelled_put_leaves_no_row_and_its_key_is_forgotten() -> None:
    class Stuck:
        def __init__(self) -> None:
            self.calls = 0

        async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
            self.calls += 1
            result = work(*args, **kwargs)
            if self.calls == 2:  # the append has happened, its answer never arrives
                await asyncio.Event().wait()
            return result

    async def scene() -> None:
        disk, root = crash_disk()
        plane = MemoryPlane(disk, root / "segments", incarnation=Incarnation(1), offload=Stuck())
        put = asyncio.create_task(plane.put([make_row(1)]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put
        assert plane.freeze().keys == frozenset()
        with pytest.raises(InvariantError):
            await plane.get([make_row(1).key])

    asyncio.run(scene())


def test_a6_loading_changes_nothing_until_the_first_write() -> None:
    async def scene() -> None:
        disk, root = crash_disk()
        make = maker(disk, root, Inline())
        plane = make()
        rows = [make_row(i) for i in range(3)]
        await plane.put(rows)
        handle = plane.freeze()
        await plane.save(handle, keys=keys_of(rows), directory=Path(root / "a"), link=True)
        before = disk.visible().signature()
        other = make()
        await other.load(Path(root / "a"), keys_of(rows))
        assert disk.visible().signature() == before
        await other.adopt()
        (name,), (old,) = disk.list(root / "segments"), disk.list(root / "a")[1:]
        assert name > old and disk.read(root / "segments" / name) == disk.read(root / "a" / old)

    asyncio.run(scene())
