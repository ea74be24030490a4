"""The contract of `DataPlane`: acknowledged rows stay readable, a frozen inventory is saved.

`check_plane(make, files, root)`: `make()` gives a fresh, empty plane of a new incarnation on the
same disk each time; `root` is an existing directory on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from outlast.durable.files import Files
from outlast.errors import CorruptData, InvariantError
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.ports import DataPlane
from outlast.rows import Row, row_digest

Make = Callable[[], DataPlane]


def make_row(group: int, *, n: int = 0, tokens: int = 7, incarnation: int = 1) -> Row:
    """A row whose content depends on its key; group 0 has no token at all."""
    rng = np.random.default_rng([group, n])
    length = tokens if group else 0
    return Row(
        key=AttemptKey(GroupId(group), SiblingIndex(0), Incarnation(incarnation), n),
        prompt_ids=rng.integers(0, 99, 3).astype(np.int32),
        response_ids=rng.integers(0, 99, length).astype(np.int32),
        logprobs=rng.standard_normal(length).astype(np.float32),
        weight_versions=np.full(length, group, np.int32),
        loss_mask=rng.random(length) < 0.5,
        reward=0.1 * group,
        mask_sample=group % 2 == 1,
        extras={"depth": float(group), "odd": float("nan")} if group % 3 == 0 else {},
    )


def stored_digest(row: Row) -> str:
    """Digest of the row as the plane keeps it: the reward is float32."""
    return row_digest(
        Row(
            key=row.key,
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            logprobs=row.logprobs,
            weight_versions=row.weight_versions,
            loss_mask=row.loss_mask,
            reward=float(np.float32(row.reward)),
            mask_sample=row.mask_sample,
            extras=row.extras,
        )
    )


def keys_of(rows: list[Row]) -> frozenset[AttemptKey]:
    return frozenset(row.key for row in rows)


async def check_plane(make: Make, files: Files, root: PurePosixPath) -> None:
    """The whole suite, one part after the other."""
    await check_rows_read_back(make())
    await check_double_put_and_missing_get(make())
    await check_release_is_tolerant(make())
    await check_freeze_is_an_instant(make(), files, root)
    await check_saved_rows_load_bit_for_bit(make, files, root)
    await check_save_writes_exactly_the_keys(make, files, root)
    await check_load_is_all_or_nothing(make, files, root)
    await check_save_resume_save(make, files, root)
    await check_concurrent_puts(make())


async def check_rows_read_back(plane: DataPlane) -> None:
    rows = [make_row(i) for i in range(5)]
    digests = await plane.put(rows)
    assert digests == tuple(stored_digest(row) for row in rows)
    back = await plane.get([rows[3].key, rows[0].key])
    assert [row.key for row in back] == [rows[3].key, rows[0].key]
    assert [row_digest(row) for row in back] == [digests[3], digests[0]]
    assert await plane.get([]) == () and await plane.put([]) == ()
    await plane.close()


async def check_double_put_and_missing_get(plane: DataPlane) -> None:
    row = make_row(1)
    await plane.put([row])
    with pytest.raises(InvariantError, match=r"g1\.s0\.i1\.n0"):
        await plane.put([row])
    with pytest.raises(InvariantError):
        await plane.put([make_row(2), make_row(2)])
    with pytest.raises(InvariantError, match=r"g9\.s0\.i1\.n0"):
        await plane.get([row.key, make_row(9).key])
    await plane.close()


async def check_release_is_tolerant(plane: DataPlane) -> None:
    row, other = make_row(1), make_row(2)
    await plane.put([row, other])
    await plane.release([row.key, make_row(9).key])
    await plane.release([row.key])
    with pytest.raises(InvariantError):
        await plane.get([row.key])
    assert len(await plane.get([other.key])) == 1
    assert plane.freeze().keys == {other.key}
    await plane.close()


async def check_freeze_is_an_instant(plane: DataPlane, files: Files, root: PurePosixPath) -> None:
    """Rows released or added after the freeze change nothing in what is saved."""
    early, late = [make_row(i) for i in range(4)], [make_row(9)]
    await plane.put(early)
    handle = plane.freeze()
    await plane.put(late)
    await plane.release([early[0].key])
    assert handle.keys == keys_of(early)
    directory = root / "instant"
    saved = await plane.save(handle, keys=keys_of(early), directory=Path(directory), link=True)
    assert {entry.name for entry in saved} == set(files.list(directory))
    handle.close()
    handle.close()
    with pytest.raises(InvariantError):
        await plane.save(handle, keys=keys_of(early), directory=Path(root / "closed"), link=True)
    handle = plane.freeze()
    with pytest.raises(InvariantError, match="S6"):
        await plane.save(handle, keys=keys_of(early), directory=Path(root / "gone"), link=True)
    handle.close()
    await plane.close()


async def check_saved_rows_load_bit_for_bit(make: Make, files: Files, root: PurePosixPath) -> None:
    plane = make()
    rows = [make_row(i, n=1) for i in range(6)]
    digests = await plane.put(rows)
    for link in (True, False):
        directory = root / f"whole_{link}"
        handle = plane.freeze()
        await plane.save(handle, keys=keys_of(rows), directory=Path(directory), link=link)
        handle.close()
        other = make()
        await other.load(Path(directory), keys_of(rows))
        back = await other.get([row.key for row in rows])
        assert tuple(row_digest(row) for row in back) == digests
        assert other.freeze().keys == keys_of(rows)
        await other.close()
    await plane.close()


async def check_save_writes_exactly_the_keys(make: Make, files: Files, root: PurePosixPath) -> None:
    plane = make()
    rows = [make_row(i, n=2) for i in range(6)]
    await plane.put(rows)
    handle = plane.freeze()
    await plane.save(handle, keys=keys_of(rows[:2]), directory=Path(root / "some"), link=True)
    await plane.save(handle, keys=frozenset(), directory=Path(root / "none"), link=True)
    handle.close()
    for name, kept in (("some", rows[:2]), ("none", [])):
        other = make()
        await other.load(Path(root / name), keys_of(kept))
        assert other.freeze().keys == keys_of(kept)
        await other.close()
    await plane.close()


async def check_load_is_all_or_nothing(make: Make, files: Files, root: PurePosixPath) -> None:
    plane = make()
    rows = [make_row(i, n=3) for i in range(3)]
    await plane.put(rows)
    handle = plane.freeze()
    await plane.save(handle, keys=keys_of(rows), directory=Path(root / "exact"), link=True)
    handle.close()
    other = make()
    for wrong in (keys_of(rows[:2]), keys_of([*rows, make_row(8)])):
        with pytest.raises(CorruptData):
            await other.load(Path(root / "exact"), wrong)
        assert other.freeze().keys == frozenset(), "a failed load left rows behind"
    await other.load(Path(root / "exact"), keys_of(rows))
    with pytest.raises(InvariantError):
        await other.load(Path(root / "exact"), keys_of(rows))
    await other.close()
    await plane.close()


async def check_save_resume_save(make: Make, files: Files, root: PurePosixPath) -> None:
    """Three lives, each adding rows to what it restored."""
    held: list[Row] = []
    for life in range(3):
        plane = make()
        if held:
            await plane.load(Path(root / f"life_{life - 1}"), keys_of(held))
        fresh = [make_row(20 + 2 * life + i, incarnation=life + 1) for i in range(2)]
        await plane.put(fresh)
        held += fresh
        handle = plane.freeze()
        await plane.save(
            handle, keys=keys_of(held), directory=Path(root / f"life_{life}"), link=life != 1
        )
        handle.close()
        await plane.close()
    last = make()
    await last.load(Path(root / "life_2"), keys_of(held))
    back = await last.get([row.key for row in held])
    assert [row_digest(row) for row in back] == [stored_digest(row) for row in held]
    await last.close()


async def check_concurrent_puts(plane: DataPlane) -> None:
    rows = [make_row(i, n=4) for i in range(12)]
    await asyncio.gather(*(plane.put([row]) for row in rows))
    back = await plane.get([row.key for row in rows])
    assert [row_digest(row) for row in back] == [stored_digest(row) for row in rows]
    await plane.close()
