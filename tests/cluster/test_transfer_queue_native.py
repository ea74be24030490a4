"""`data_plane.checkpoint: native`: sealed, verified before it is unpickled, whole or not at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path, PurePosixPath

import pytest

pytest.importorskip("ray")
pytest.importorskip("transfer_queue")

from outlast.adapters.planes.memory import MemoryPlane
from outlast.adapters.planes.transfer_queue import TransferQueuePlane
from outlast.config.schema import DataPlaneSection, RaySection
from outlast.durable.files import PosixFiles
from outlast.errors import CorruptData, NotRestorable, UnsupportedFormat
from outlast.model.ids import Incarnation
from outlast.rows import Row, row_digest
from outlast.world import ThreadOffload
from tests.contracts.plane_contract import keys_of, make_row, stored_digest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.usefixtures("cluster")]

FILES = PosixFiles()


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_p3_a_native_cut_is_whole_and_nothing_else_is_ever_unpickled(tmp_path: Path) -> None:
    """One long scene, for queues start slowly: saved beside later rows, restored exactly; refused
    with another number of units, by the memory plane, for other keys, and with a byte changed."""
    threads = ThreadOffload()
    warnings: list[str] = []

    def plane(number: int, *, units: int = 2) -> TransferQueuePlane:
        return TransferQueuePlane(
            FILES,
            PurePosixPath(tmp_path / "segments"),
            incarnation=Incarnation(number),
            offload=threads,
            settings=DataPlaneSection(
                impl="transfer_queue", checkpoint="native", storage_units=units, timeout_s=30
            ),
            ray=RaySection(),
            on_warning=warnings.append,
        )

    async def expect(holder: TransferQueuePlane, rows: list[Row]) -> None:
        back = await holder.get([row.key for row in rows])
        assert [row_digest(row) for row in back] == [stored_digest(row) for row in rows]
        assert holder.freeze().keys == keys_of(rows)
        queue = await holder._queue.queue()
        listed = await queue.answer(queue.client.listing())
        assert listed == {str(row.key) for row in rows}

    async def scene() -> None:
        rows, later = [make_row(i) for i in range(30)], [make_row(i, n=1) for i in range(5)]
        first = plane(1)
        await first.put(rows)
        handle = first.freeze()
        _, saved = await asyncio.gather(
            first.put(later),
            first.save(handle, keys=keys_of(rows[1:]), directory=tmp_path / "cut", link=True),
        )
        bundled = await first.save(
            handle, keys=keys_of(rows), directory=tmp_path / "bundled", link=False
        )
        handle.close()
        assert {f.name for f in bundled} >= {"index.json.zst"}, "a bundled cut is no segments"
        await first.close()
        standing = {str(p.relative_to(tmp_path / "cut")) for p in (tmp_path / "cut").rglob("*.*")}
        assert {f.name for f in saved} == standing and len(saved) == 5

        second = plane(2)
        await second.load(tmp_path / "cut", keys_of(rows[1:]))
        await expect(second, rows[1:])
        await second.put(later)
        await expect(second, rows[1:] + later)
        await second.close()

        memory = MemoryPlane(
            FILES,
            PurePosixPath(tmp_path / "segments"),
            incarnation=Incarnation(3),
            offload=threads,
        )
        with pytest.raises(UnsupportedFormat, match=r"data_plane\.impl: transfer_queue"):
            await memory.load(tmp_path / "cut", keys_of(rows[1:]))
        other = plane(4, units=1)
        with pytest.raises(NotRestorable, match="2 TransferQueue storage units"):
            await other.load(tmp_path / "cut", keys_of(rows[1:]))
        with pytest.raises(CorruptData, match="missing"):
            await other.load(tmp_path / "cut", keys_of(rows))
        import pickle

        trap = tmp_path / "sprung"
        (tmp_path / "cut/queue/controller_state.pkl").write_bytes(pickle.dumps(Bomb(trap)))
        with pytest.raises(CorruptData, match="it is not loaded"):
            await other.load(tmp_path / "cut", keys_of(rows[1:]))
        assert not trap.exists() and other.freeze().keys == frozenset()
        await other.close()

    asyncio.run(scene())
    threads.close()
    assert warnings == []
