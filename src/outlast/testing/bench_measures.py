"""The measurements of `bench`; each returns figures with their units in their names.

Whatever is compared is measured in the same process, in turns. May import: `bench_scene`, torch.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from outlast.adapters.planes.memory import MemoryPlane
from outlast.model.ids import Incarnation
from outlast.rows import Row
from outlast.runtime.prefixes import prefix_refs
from outlast.testing.bench_scene import (
    FILES,
    PROMPTS_PER_STEP,
    SIBLINGS,
    RowMaker,
    Scene,
    make_scene,
    write_rate,
)
from outlast.world import real_world

FIELD_ROW_BYTES = 17_000
"""A row of about 1,270 tokens, as in DESIGN 16."""
BATCH = 64
Say = Callable[[str], None]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the scenes are."""

    groups: int = 10_000
    in_flight: int = 256
    rows_bytes: int = 1 << 30
    cuts: int = 300
    append_bytes: int = 512 << 20
    torch_rows: tuple[int, ...] = (512, 4_096, 16_384)
    rounds: int = 3


# ------------------------------------------------------------------------------ cut and snapshot


async def measure_cut(directory: Path, sizes: Sizes, *, say: Say) -> Figures:
    """Hold of the event loop by a cut, and two snapshots a second apart."""
    row_bytes = sizes.rows_bytes // (sizes.groups * SIBLINGS)
    scene = make_scene(directory / "run", groups=sizes.groups, row_bytes=row_bytes)
    try:
        say(f"filling {sizes.groups:,} groups with {sizes.rows_bytes >> 20:,} MiB of rows")
        await scene.fill(sizes.groups)
        scene.fly(sizes.in_flight)
        say("publishing two snapshots")
        first = await scene.snapshot()
        await asyncio.sleep(1.0)
        await scene.fill(PROMPTS_PER_STEP)
        began = time.perf_counter()
        second = await scene.snapshot()
        seconds = time.perf_counter() - began
        await scene.fill(PROMPTS_PER_STEP)  # what a second of generation leaves unsaved
        measured = [_hold(scene) for _ in range(sizes.cuts)]
    finally:
        await scene.close()
    holds, busy = [wall for wall, _ in measured], [cpu for _, cpu in measured]
    return {
        "groups": sizes.groups,
        "rows": float(first.rows),
        "cuts": len(holds),
        "hold_p50_ms": 1e3 * statistics.median(holds),
        "hold_p99_ms": 1e3 * _quantile(holds, 0.99),
        "hold_max_ms": 1e3 * max(holds),
        "hold_cpu_p50_ms": 1e3 * statistics.median(busy),
        "hold_cpu_p99_ms": 1e3 * _quantile(busy, 0.99),
        "first_save_s": first.save_s,
        "first_commit_s": first.commit_s,
        "first_bytes": first.bytes_total,
        "second_new_rows": PROMPTS_PER_STEP * SIBLINGS,
        "second_s": seconds,
        "second_save_s": second.save_s,
        "second_commit_s": second.commit_s,
        "second_bytes_new": second.bytes_written,
        "second_bytes_full": second.bytes_total,
        "second_share": second.bytes_written / second.bytes_total,
    }


def _hold(scene: Scene) -> tuple[float, float]:
    """Seconds of the synchronous section as `SnapshotPump` has it: by the clock, and of CPU.

    They differ where other processes took the core away.
    """
    board = scene.board
    began, busy = time.perf_counter(), time.thread_time()
    prefixes = board.frozen_prefixes()
    board.state.cut(
        sequence=board.next_sequence,
        parent=board.parent,
        anchor=board.anchor,
        prefixes=prefix_refs(prefixes),
    )
    handle = scene.plane.freeze()
    frozenset(board.sealed_since_cut)
    seconds = time.perf_counter() - began, time.thread_time() - busy
    handle.close()
    return seconds


def _quantile(values: list[float], q: float) -> float:
    return sorted(values)[min(len(values) - 1, int(q * len(values)))]


# -------------------------------------------------------------------------------- rows on disk


def _plane(directory: Path, incarnation: int = 1) -> MemoryPlane:
    number, offload = Incarnation(incarnation), real_world(seed=0).offload
    return MemoryPlane(
        FILES, PurePosixPath(directory) / "segments", incarnation=number, offload=offload
    )


async def measure_append(directory: Path, sizes: Sizes, *, say: Say) -> Figures:
    """Durable append of 64-row batches against one synced sequential write of as many bytes."""
    count = max(BATCH, sizes.append_bytes // FIELD_ROW_BYTES // BATCH * BATCH)
    rows = RowMaker(FIELD_ROW_BYTES).rows(count)
    size = sum(row.nbytes for row in rows)
    say(f"appending {count:,} rows, {size >> 20:,} MiB, {sizes.rounds} times")
    seconds, rates, loads, busy = [], [], [], []
    for number in range(sizes.rounds):
        place = directory / f"append_{number}"
        place.mkdir(parents=True)
        rates.append(write_rate(place / "sequential", size))
        began = time.perf_counter()
        plane = await _appended(place, rows)
        seconds.append(time.perf_counter() - began)
        await plane.close()
        began, wall = time.process_time(), await _load_seconds(place, rows)
        busy.append(size / (time.process_time() - began))
        loads.append(size / wall)
    rate, disk = size / statistics.median(seconds), statistics.median(rates)
    return {
        "rows": count,
        "row_bytes": size / count,
        "rows_per_s": count / statistics.median(seconds),
        "append_mb_per_s": rate / 1e6,
        "disk_mb_per_s": disk / 1e6,
        "share_of_disk": rate / disk,
        "load_mb_per_s": statistics.median(loads) / 1e6,
        "load_mb_per_cpu_s": statistics.median(busy) / 1e6,
    }


async def _appended(place: Path, rows: list[Row]) -> MemoryPlane:
    """Batches one after the other, then one save: all rows durable, with digests and an index."""
    plane = _plane(place)
    for start in range(0, len(rows), BATCH):
        await plane.put(rows[start : start + BATCH])
    await _save(plane, place / "rows", rows=rows)
    return plane


async def _save(plane: MemoryPlane, directory: Path, *, rows: list[Row]) -> None:
    handle = plane.freeze()
    await plane.save(
        handle, keys=frozenset(row.key for row in rows), directory=directory, link=True
    )
    handle.close()


async def _load_seconds(place: Path, rows: list[Row]) -> float:
    """Reading everything back with every digest compared; the page cache is warm."""
    plane = _plane(place, incarnation=2)
    began = time.perf_counter()
    await plane.load(place / "rows", frozenset(row.key for row in rows))
    seconds = time.perf_counter() - began
    await plane.close()
    return seconds


async def measure_torch(directory: Path, sizes: Sizes, *, say: Say) -> dict[str, Figures]:
    """A snapshot after 64 new rows against torch.save of everything, both synced, in turns."""
    found: dict[str, Figures] = {}
    for count in sizes.torch_rows:
        say(f"64 new rows beside {count:,}: segments against torch.save")
        ours, theirs = [], []
        place = directory / f"torch_{count}"
        place.mkdir(parents=True)
        rows = RowMaker(FIELD_ROW_BYTES).rows(count + BATCH * sizes.rounds)
        plane = await _appended(place, rows[:count])
        for number in range(sizes.rounds):
            held = count + BATCH * (number + 1)
            began = time.perf_counter()
            await plane.put(rows[held - BATCH : held])
            await _save(plane, place / f"rows_{number}", rows=rows[:held])
            ours.append(time.perf_counter() - began)
            theirs.append(_torch_save(place / f"all_{number}.pt", rows[:held]))
        await plane.close()
        segments, everything = statistics.median(ours), statistics.median(theirs)
        found[str(count)] = {
            "snapshot_s": segments,
            "torch_save_s": everything,
            "ratio": segments / everything,
        }
    return found


def _torch_save(path: Path, rows: list[Row]) -> float:
    """The best case of torch.save: whole columns, not a tensor per row."""
    import torch

    columns = ("prompt_ids", "response_ids", "logprobs", "weight_versions", "loss_mask")
    began = time.perf_counter()
    image = {
        name: torch.from_numpy(np.concatenate([getattr(row, name) for row in rows]))
        for name in columns
    }
    with path.open("wb") as file:
        torch.save(image, file)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds
