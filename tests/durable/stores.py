"""Segment stores with rows in them."""

from __future__ import annotations

from pathlib import PurePosixPath

from outlast.durable.segments import Held, SegmentStore
from outlast.model.ids import AttemptKey, Incarnation
from outlast.rows import row_digest
from outlast.testing.crash_disk import CrashDisk
from tests.contracts.plane_contract import make_row

ROOT = PurePosixPath("/run")


def held(*groups: int, tokens: int = 7) -> dict[AttemptKey, Held]:
    rows = [make_row(group, tokens=tokens) for group in groups]
    return {row.key: Held(row, row_digest(row)) for row in rows}


def new_store(disk: CrashDisk, *, incarnation: int = 1) -> SegmentStore:
    return SegmentStore(disk, ROOT / "segments", incarnation=Incarnation(incarnation))


def new_disk(*, links: bool = True) -> CrashDisk:
    disk = CrashDisk(links=links)
    disk.mkdir(ROOT)
    return disk


def save(
    disk: CrashDisk,
    store: SegmentStore,
    rows: dict[AttemptKey, Held],
    name: str,
    *,
    link: bool = True,
) -> tuple[str, ...]:
    disk.mkdir(ROOT / name)
    store.save(rows, ROOT / name, link=link)
    return disk.list(ROOT / name)


def digests(rows: dict[AttemptKey, Held]) -> dict[AttemptKey, str]:
    return {key: item.digest for key, item in rows.items()}
