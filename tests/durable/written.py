"""Run directories that a scripted life wrote, and ways to damage them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePosixPath

import msgspec

from outlast.durable.listing import read_run
from outlast.durable.manifest import (
    COMMITTED,
    MANIFEST,
    FoundCut,
    Manifest,
    encode,
    sha256,
)
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import RUN_DIR, Promises
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import short_script

SNAPSHOT = RUN_DIR / "snapshots" / "snapshot_000002"


def lived(script: Callable[[Life], None] = short_script) -> tuple[CrashDisk, Life]:
    disk = CrashDisk()
    life = Life(disk, Promises())
    life.start()
    script(life)
    return disk, life


def two_snapshots(life: Life) -> None:
    life.draw(2)
    life.snapshot()
    life.draw(2)
    life.snapshot()


def overwrite(disk: CrashDisk, path: PurePosixPath, data: bytes) -> None:
    disk.unlink(path)
    disk.create(path).write(data)


def forge(disk: CrashDisk, directory: PurePosixPath, **changes: object) -> Manifest:
    """Change fields of a manifest and make its marker agree."""
    manifest = msgspec.json.decode(disk.read(directory / MANIFEST), type=Manifest)
    changed = msgspec.structs.replace(manifest, **changes)
    data = encode(changed)
    overwrite(disk, directory / MANIFEST, data)
    overwrite(disk, directory / COMMITTED, sha256(data).encode() + b"\n")
    return changed


def found(disk: CrashDisk, path: str, *, verify: str = "payload") -> FoundCut:
    listing = read_run(disk, RUN_DIR, verify=verify)  # type: ignore[arg-type]
    return next(cut for cut in listing.cuts if str(cut.path) == path)
