"""Our snapshot against TransferQueue's own `save_checkpoint`: same rows, same process, in turns.

Both sides hold `count` rows of about 17 kB; in every round both take 64 more and save. A hold is
what others notice: the section in which our event loop is held, and beside it, for both, the
longest wait of a one-row put from the same process during the save. Ours is synced to the disk and
carries digests; TransferQueue's is neither. Without it the figures say that nothing was measured.
May import: the scene and the queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.rows import Row
from outlast.testing.bench_measures import BATCH, FIELD_ROW_BYTES, Figures, Say
from outlast.testing.bench_queue import Queue, local_ray, missing
from outlast.testing.bench_scene import SIBLINGS, RowMaker, Scene, make_scene

PROBE_ROW_BYTES = 600
PROBE_EVERY_S = 0.005
PROBE_GROUP = 1_000_000
MARGIN_S = 0.05
"""Of probing before and after a save."""
Waits = list[tuple[float, float]]
"""(start, seconds) of each put."""


def measure_transfer_queue(
    directory: Path, counts: Sequence[int], *, rounds: int, say: Say
) -> dict[str, Figures] | dict[str, str]:
    """Figures by number of rows, or ``{"not_measured": reason}``."""
    lacking = missing()
    if lacking:
        reason = f"{', '.join(lacking)} is not installed"
        say(f"NOT MEASURED: {reason}")
        return {"not_measured": reason}
    found: dict[str, Figures] = {}
    with local_ray():
        for count in counts:
            say(f"64 new rows beside {count:,}: our snapshot against TransferQueue's checkpoint")
            place = directory / f"rows_{count}"
            place.mkdir(parents=True)
            with contextlib.closing(Queue()) as queue:
                found[str(count)] = asyncio.run(_duel(place, queue, count=count, rounds=rounds))
            shutil.rmtree(place)
    return found


@dataclass(slots=True)
class Side:
    """What one contender showed, a value per round."""

    save_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    hold_s: list[float] = field(default_factory=list)
    """Of ours only."""
    size: list[int] = field(default_factory=list)


async def _duel(place: Path, queue: Queue, *, count: int, rounds: int) -> Figures:
    scene = make_scene(place / "run", groups=count // SIBLINGS, row_bytes=FIELD_ROW_BYTES)
    maker, ours, theirs = RowMaker(FIELD_ROW_BYTES), Side(), Side()
    try:
        await scene.fill(count // SIBLINGS)
        await scene.snapshot()
        for start in range(0, count, BATCH):
            queue.put(maker.rows(BATCH, group=start // SIBLINGS))
        queue.put([_probe_row(0)])
        for number in range(rounds):
            await scene.fill(BATCH // SIBLINGS)
            await _our_save(scene, ours, number=number)
            queue.put(maker.rows(BATCH, group=count // SIBLINGS + number * BATCH // SIBLINGS))
            _their_save(queue, theirs, directory=place / f"checkpoint_{number}")
        expected, listed = count + rounds * BATCH + 1, queue.count()
        assert listed == expected, f"TransferQueue lists {listed} rows of {expected}"
    finally:
        await scene.close()
    return figures_of(ours, theirs)


def figures_of(ours: Side, theirs: Side) -> Figures:
    """Medians over the rounds, and their ratios (ours to theirs)."""
    total, their_total = statistics.median(ours.save_s), statistics.median(theirs.save_s)
    hold, stall = statistics.median(ours.hold_s), statistics.median(theirs.stall_s)
    return {
        "rounds": len(ours.save_s),
        "hold_ms": 1e3 * hold,
        "stall_ms": 1e3 * statistics.median(ours.stall_s),
        "total_s": total,
        "bytes": statistics.median(ours.size),
        "their_stall_ms": 1e3 * stall,
        "their_total_s": their_total,
        "their_bytes": statistics.median(theirs.size),
        "hold_ratio": hold / stall,
        "stall_ratio": statistics.median(ours.stall_s) / stall,
        "total_ratio": total / their_total,
        "bytes_ratio": statistics.median(ours.size) / statistics.median(theirs.size),
    }


# ------------------------------------------------------------------------------ the two savers


async def _our_save(scene: Scene, side: Side, *, number: int) -> None:
    waits: Waits = []
    stop = asyncio.Event()
    probe = asyncio.create_task(_our_probe(scene, waits, stop=stop, number=number))
    await asyncio.sleep(MARGIN_S)
    began = time.perf_counter()
    published = await scene.snapshot()
    ended = time.perf_counter()
    await asyncio.sleep(MARGIN_S)
    stop.set()
    await probe
    side.save_s.append(ended - began)
    side.stall_s.append(longest_wait(waits, began=began, ended=ended))
    side.hold_s.append(published.hold_s)
    side.size.append(published.bytes_written)


async def _our_probe(scene: Scene, waits: Waits, *, stop: asyncio.Event, number: int) -> None:
    n = 0
    while not stop.is_set():
        row = _probe_row(number, n=n)
        began = time.perf_counter()
        await scene.plane.put([row])
        waits.append((began, time.perf_counter() - began))
        n += 1
        await asyncio.sleep(PROBE_EVERY_S)


def _their_save(queue: Queue, side: Side, *, directory: Path) -> None:
    with _their_probe(queue) as waits:
        time.sleep(MARGIN_S)
        began = time.perf_counter()
        size = queue.save(directory)
        ended = time.perf_counter()
        time.sleep(MARGIN_S)
    shutil.rmtree(directory)
    side.save_s.append(ended - began)
    side.stall_s.append(longest_wait(waits, began=began, ended=ended))
    side.size.append(size)


@contextlib.contextmanager
def _their_probe(queue: Queue) -> Iterator[Waits]:
    """One row overwritten again and again by another thread."""
    waits: Waits = []
    stop, row = threading.Event(), _probe_row(0)

    def put() -> None:
        while not stop.wait(PROBE_EVERY_S):
            began = time.perf_counter()
            queue.put([row])
            waits.append((began, time.perf_counter() - began))

    thread = threading.Thread(target=put, name="probe")
    thread.start()
    try:
        yield waits
    finally:
        stop.set()
        thread.join()


def _probe_row(number: int, *, n: int = 0) -> Row:
    key = AttemptKey(
        group=GroupId(PROBE_GROUP + number),
        sibling=SiblingIndex(0),
        incarnation=Incarnation(1),
        n=n,
    )
    return RowMaker(PROBE_ROW_BYTES).row(key)


def longest_wait(waits: Sequence[tuple[float, float]], *, began: float, ended: float) -> float:
    """Longest of the waits that overlap [began, ended]; 0 without any."""
    return max((s for at, s in waits if at + s >= began and at <= ended), default=0.0)
