"""`TransferQueuePlane`: the contract of its port, deaths of its parts, cuts across planes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from outlast.adapters.planes import queue_rows
from outlast.adapters.planes.memory import MemoryPlane
from outlast.adapters.planes.queue_cluster import QueueCluster
from outlast.adapters.planes.queue_rows import REPLACED_MAX
from outlast.adapters.planes.segmented import SegmentedPlane
from outlast.adapters.planes.transfer_queue import TransferQueuePlane
from outlast.adapters.ray_session import SESSION
from outlast.config.schema import DataPlaneSection, RaySection
from outlast.durable.files import PosixFiles
from outlast.errors import OutlastError
from outlast.model.ids import Incarnation
from outlast.rows import Row, row_digest
from outlast.world import ThreadOffload
from tests.contracts.plane_contract import check_plane, keys_of, make_row, stored_digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RAY = RaySection()
FILES = PosixFiles()


@pytest.fixture(scope="module")
def offload() -> Iterator[ThreadOffload]:
    threads = ThreadOffload()
    yield threads
    threads.close()


@pytest.fixture(scope="module", autouse=True)
def cluster(offload: ThreadOffload) -> Iterator[None]:
    """One local Ray for the module; planes connect to it and give it back."""
    asyncio.run(offload(SESSION.acquire, RAY))
    yield
    asyncio.run(offload(SESSION.release))
    gc.collect()  # clients end here, not inside the summary, where ast.parse failed under 3.11


class Planes:
    """Makes planes of new incarnations on one disk."""

    def __init__(self, root: Path, offload: ThreadOffload) -> None:
        self.root = PurePosixPath(root)
        self.warnings: list[str] = []
        self._offload = offload
        self._numbers = count(1)

    def queue(self, *, units: int = 1, timeout_s: float = 20.0) -> TransferQueuePlane:
        return TransferQueuePlane(
            FILES,
            self.root / "segments",
            incarnation=Incarnation(next(self._numbers)),
            offload=self._offload,
            settings=DataPlaneSection(
                impl="transfer_queue", storage_units=units, timeout_s=timeout_s
            ),
            ray=RAY,
            on_warning=self.warnings.append,
        )

    def memory(self) -> MemoryPlane:
        return MemoryPlane(
            FILES,
            self.root / "segments",
            incarnation=Incarnation(next(self._numbers)),
            offload=self._offload,
        )


@pytest.fixture
def planes(tmp_path: Path, offload: ThreadOffload) -> Planes:
    return Planes(tmp_path, offload)


class Shared(QueueCluster):
    """The same actors for every queue, a partition for each: processes take seconds to start."""

    first: QueueCluster | None = None
    numbers = count(1)

    def __init__(self, ray: Any, *, name: str, partition: str, units: int) -> None:
        if Shared.first is None:
            Shared.first = QueueCluster(ray, name=name, partition=partition, units=units)
        self.actors = Shared.first.actors
        self.address = replace(Shared.first.address, partition=f"{partition}_{next(self.numbers)}")

    def announce(self) -> None:
        """No reader looks for it."""

    def close(self) -> None:
        """Others use it."""


def test_contract(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_rows, "QueueCluster", Shared)
    asyncio.run(check_plane(planes.queue, FILES, planes.root))
    assert planes.warnings == []
    assert Shared.first is not None and next(Shared.numbers) > 10, "the queue was never started"
    Shared.first.close()
    Shared.first = None


# --- deaths ---------------------------------------------------------------------------------------


async def pids(plane: TransferQueuePlane) -> list[int]:
    """Of the controller and the storage units."""
    queue = await plane._queue.queue()
    asked = [actor.__ray_call__.remote(lambda _: os.getpid()) for actor in queue.cluster.actors]
    return [await asyncio.wait_for(asyncio.wrap_future(ref.future()), 30) for ref in asked]


async def expect_rows(plane: SegmentedPlane, rows: list[Row]) -> None:
    back = await plane.get([row.key for row in rows])
    assert [row.key for row in back] == [row.key for row in rows]
    assert [row_digest(row) for row in back] == [stored_digest(row) for row in rows]


async def save(plane: SegmentedPlane, rows: list[Row], directory: PurePosixPath) -> None:
    handle = plane.freeze()
    await plane.save(handle, keys=keys_of(rows), directory=Path(directory), link=True)
    handle.close()


@pytest.mark.parametrize("victim", [0, 2], ids=["controller", "unit"])
def test_p1_a_killed_part_costs_no_row(planes: Planes, victim: int) -> None:
    """Rows that only the queue and a segment hold, rows since then, released ones, and a put and a
    get in flight: all that was acknowledged is there again, nothing else."""

    async def scene() -> None:
        plane = planes.queue(units=2)
        early = [make_row(i) for i in range(1, 300)]
        await plane.put(early)
        await save(plane, early, planes.root / "a")
        late = [make_row(i, n=1) for i in range(8)]
        await plane.put(late)
        gone, early = early[:5], early[5:]
        await plane.release([row.key for row in gone])
        fresh = [make_row(i, n=2) for i in range(8)]
        os.kill((await pids(plane))[victim], signal.SIGKILL)
        began = time.monotonic()
        await asyncio.gather(plane.put(fresh), expect_rows(plane, early), expect_rows(plane, late))
        print(f"refilled and answered after {time.monotonic() - began:.2f} s")
        await expect_rows(plane, early + late + fresh)
        assert plane.freeze().keys == keys_of(early + late + fresh)
        queue = await plane._queue.queue()
        listed = await queue.answer(queue.client.listing())
        assert listed == {str(row.key) for row in early + late + fresh}
        await plane.close()

    asyncio.run(scene())
    assert len(planes.warnings) == 1
    assert ("controller" if victim == 0 else "storage unit 1") in planes.warnings[0]


def test_a_reader_elsewhere_finds_the_next_queue_by_itself(planes: Planes) -> None:
    """Nobody uses the plane meanwhile: its watch notices and a waiting rank goes on."""

    async def scene() -> None:
        import ray

        plane = planes.queue()
        rows = [make_row(i) for i in range(12)]
        await plane.put(rows)

        @ray.remote(num_cpus=0)
        class Rank:
            def __init__(self, reader: Any) -> None:
                self._reader = reader

            def fetch(self, keys: Any) -> Any:
                return self._reader.fetch(keys)

        rank = Rank.remote(plane.reader())
        keys = [row.key for row in rows]
        expected = [stored_digest(row) for row in rows]
        for kill in (False, True):
            if kill:
                os.kill((await pids(plane))[1], signal.SIGKILL)
            asked = asyncio.wrap_future(rank.fetch.remote(keys[::-1]).future())
            back = await asyncio.wait_for(asked, 90)
            assert [row_digest(row) for row in back] == expected[::-1]
        ray.kill(rank)
        await plane.close()

    asyncio.run(scene())
    assert len(planes.warnings) == 1


def test_a_queue_that_dies_again_and_again_ends_the_run(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never an endless loop of restarts: a fatal error that says what to do."""

    async def scene() -> None:
        plane = planes.queue()
        await plane.put([make_row(1)])
        refuse_every_put(plane, monkeypatch)
        with pytest.raises(OutlastError, match=r"lost 4 times in a row.*data_plane\.impl: memory"):
            await plane.put([make_row(2)])
        with pytest.raises(OutlastError, match="in a row"):
            await plane.put([make_row(3)])
        await expect_rows(plane, [make_row(1)])  # no synced segment holds it yet, this process does
        await plane.close()

    asyncio.run(scene())
    assert len(planes.warnings) == REPLACED_MAX


def refuse_every_put(plane: TransferQueuePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlast.adapters.planes.queue_client import QueueClient
    from outlast.adapters.planes.queue_columns import QueueFault

    async def refuse(self: QueueClient, held: Any) -> None:
        raise QueueFault("refused by the test")

    monkeypatch.setattr(QueueClient, "_put_batch", refuse)


# --- cuts across planes ---------------------------------------------------------------------------

Make = Callable[[Planes], SegmentedPlane]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        (lambda p: p.memory(), lambda p: p.queue(units=2)),
        (lambda p: p.queue(), lambda p: p.memory()),
        (lambda p: p.queue(units=1), lambda p: p.queue(units=2)),
    ],
    ids=["memory-queue", "queue-memory", "one-two-units"],
)
def test_a_cut_of_one_plane_restores_into_the_other(
    planes: Planes, writer: Make, reader: Make
) -> None:
    async def scene() -> None:
        rows = [make_row(i) for i in range(20)]
        first = writer(planes)
        await first.put(rows)
        await save(first, rows, planes.root / "a")
        await first.close()
        second = reader(planes)
        await second.load(Path(planes.root / "a"), keys_of(rows))
        await expect_rows(second, rows)
        more = [make_row(i, n=7) for i in range(3)]
        await second.put(more)
        await save(second, rows + more, planes.root / "b")
        await expect_rows(second, rows + more)
        await second.close()
        third = planes.memory()
        await third.load(Path(planes.root / "b"), keys_of(rows + more))
        await expect_rows(third, rows + more)
        await third.close()

    asyncio.run(scene())
