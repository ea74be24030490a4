"""Power cuts and full disks that are real: a run on a file system of its own, in an image file.

A cut copies the image while the program is stopped, drops the mount, and mounts the copy, which
recovers its journal. What the program wrote and never synced stands in the page cache of the
mounted file system and is not in the image, so it is gone, as with a real cut.

What this models: a disk that keeps every write it was given, and loses what the kernel still held.
The copy is one instant: it counts only if the device saw no write from its first to its last byte.
What it does not: a volatile cache of the disk itself that lies about flushes or reorders between
them, and a cut inside of a system call (a stopped process first finishes the fsync it is in). Such
states are enumerated in harness (a). An fsync on ext4 also commits the whole journal before it, so
a forgotten sync of a directory mostly goes unseen here; harness (a) finds that too.

Needs root, loop devices and mkfs; `why_not` says what is missing. May import: `errors`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from outlast.errors import DiskError

MAKE: Final[Mapping[str, tuple[str, ...]]] = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
"""How each kind of file system is made; ext4 without a reserve, so that full means full."""
OPTIONS: Final = {"ext4": "loop,commit=300", "xfs": "loop"}
"""No journal commit by the clock: what nobody synced is lost, however old it is."""
SMALLEST_BYTES: Final = {"ext4": 16 << 20, "xfs": 320 << 20}
COPIES_MAX = 50
UNMOUNT_MAX_S = 20.0
BALLAST = "ballast"
CLONE_NEWNS = 0x00020000


class NoPower(DiskError):
    """A volume could not be made, mounted or copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What a cut took."""

    seconds: float
    tries: int
    """Copies until one met no write of the device."""


class Volume:
    """A mounted file system in an image file below `directory`. Use as a context manager."""

    def __init__(self, directory: Path, *, kind: str = "ext4", size_bytes: int) -> None:
        """Raises NoPower when it cannot be made or mounted."""
        self.kind = kind
        self.path = directory / "disk"
        self._directory = directory
        self._number = 0
        self._mounted = False
        size_bytes = max(size_bytes, SMALLEST_BYTES[kind])
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(size_bytes)
        _run(*MAKE[kind], str(self._image))
        self._mount()

    @property
    def _image(self) -> Path:
        return self._directory / f"image_{self._number:03d}"

    @property
    def _copied(self) -> Path:
        return self._directory / f"image_{self._number + 1:03d}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Unmount; the image stays, for whoever wants to look at the run."""
        self._unmount()

    def copy(self) -> Copy:
        """Take what the disk holds now; whoever writes to it should be stopped.

        Raises NoPower when the device never rests for the time of a copy.
        """
        for tries in range(1, COPIES_MAX + 1):
            before, began = self._writes(), time.monotonic()
            _run("cp", "--sparse=always", str(self._image), str(self._copied))
            seconds = time.monotonic() - began
            if before == self._writes() and before[-1] == 0:
                return Copy(seconds=seconds, tries=tries)
        raise NoPower(f"{self._image}: its device wrote during each of {COPIES_MAX} copies")

    def swap(self) -> None:
        """Go on from the copy, under the same path; nobody may have the volume in use."""
        self._unmount()
        self._image.unlink()
        self._number += 1
        self._mount()

    def fill(self, spare_bytes: int = 0) -> None:
        """Take every block but `spare_bytes` from whoever else writes to this volume."""
        free = os.statvfs(self.path)
        left = max(0, free.f_bavail * free.f_frsize - spare_bytes)
        taken, step = 0, left
        with (self.path / BALLAST).open("wb") as ballast:
            while left and step >= free.f_frsize:
                size = min(step, left)
                try:
                    os.posix_fallocate(ballast.fileno(), taken, size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step //= 2  # a file system keeps some for itself
                else:
                    taken, left = taken + size, left - size

    def drain(self) -> None:
        """Give the blocks back."""
        (self.path / BALLAST).unlink(missing_ok=True)

    def _mount(self) -> None:
        _run("mount", "-t", self.kind, "-o", OPTIONS[self.kind], str(self._image), str(self.path))
        self._mounted = True

    def _unmount(self) -> None:
        """Drop the mount; its loop device goes with it. At last lazily, so that nothing stays."""
        until = time.monotonic() + UNMOUNT_MAX_S
        while self._mounted:
            lazily = ("-l",) if time.monotonic() > until else ()
            try:
                _run("umount", *lazily, str(self.path))
                self._mounted = False
            except NoPower:
                if lazily:
                    raise
                time.sleep(0.05)

    def _writes(self) -> tuple[str | int, ...]:
        """Writes that the loop device has completed, their sectors, and what is in flight."""
        stat = Path("/sys/block") / self._device() / "stat"
        fields = stat.read_text().split()
        return (fields[4], fields[6], int(fields[8]))

    def _device(self) -> str:
        mine = str(self.path.resolve())
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, place, *_ = line.split()
            if place.encode().decode("unicode_escape") == mine:
                return Path(device).name
        raise NoPower(f"{self.path} is not mounted")


def kinds() -> tuple[str, ...]:
    """Kinds of file systems that can be made here."""
    return tuple(kind for kind, (make, *_) in MAKE.items() if shutil.which(make))


def why_not() -> str | None:
    """Why power cannot be cut here; None when it can. Tries it on a small volume."""
    if os.geteuid() != 0:
        return "mounting an image needs root"
    missing = [tool for tool in ("mount", "umount", "cp") if shutil.which(tool) is None]
    if missing or not kinds():
        return f"there is no {', '.join(missing or (make for make, *_ in MAKE.values()))}"
    with tempfile.TemporaryDirectory(prefix="outlast-power-") as directory:
        try:
            with Volume(Path(directory), kind=kinds()[0], size_bytes=SMALLEST_BYTES["ext4"]) as it:
                it.copy()
                it.swap()
        except (NoPower, OSError) as error:
            return str(error)
    return None


def private_mounts() -> None:
    """Give this process mounts of its own: they go when it ends, even by SIGKILL. Needs root.

    Without it (not permitted) mounts are dropped by `Volume` alone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) == 0:
        _run("mount", "--make-rprivate", "/")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise NoPower(f"{' '.join(command)}: exit code {done.returncode}: {said}")
