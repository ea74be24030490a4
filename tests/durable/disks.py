"""A real disk and the crash disk, so that what is said of one is tested on both."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.files import Files, PosixFiles
from outlast.testing.crash_disk import CrashDisk
from outlast.testing.crash_facts import make_world
from outlast.world import World

Disk = tuple[Files, PurePosixPath]


def make_disk(kind: str, tmp_path: Path) -> Disk:
    if kind == "posix":
        return PosixFiles(), PurePosixPath(tmp_path)
    disk, root = CrashDisk(), PurePosixPath("/run")
    disk.mkdir(root)
    return disk, root


both_disks = pytest.mark.parametrize("kind", ["posix", "crash"])


def world(*, pid: int = 1) -> World:
    return make_world(pid=pid)


class Open:
    """A fence that lets everything through."""

    def check(self) -> None:
        pass
