"""The publication protocol: how a tree of files gets a live name (DESIGN 10).

    mkdir tmp_N, fsync parent       the number is spent durably: it never returns (A5)
    write and fsync each file       through the descriptor that wrote it
    write and fsync MANIFEST.json
    fsync every directory           bottom-up
    write and fsync COMMITTED       sha256 of MANIFEST.json
    fsync tmp_N
    rename to the live name         after a fencing check
    fsync parent
    acknowledge                     only now

Any failure leaves the live names as they were; the tree is abandoned, never retried. Keeps A2, A3.
May import: `files`, `manifest`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Protocol

from outlast.durable.files import (
    Files,
    LinkRefused,
    digest_file,
    remove_tree,
    walk,
    write_file,
)
from outlast.durable.manifest import COMMITTED, MANIFEST, FileEntry, Manifest, encode, sha256
from outlast.errors import DiskError, Fenced, InvariantError
from outlast.world import Perhaps, no_mark


class Fence(Protocol):
    """Stops a controller that was replaced."""

    def check(self) -> None:
        """Raises Fenced when a newer incarnation owns the run."""
        ...


class TmpTree:
    """A tree under construction below its parent. Used once: committed or abandoned."""

    def __init__(
        self,
        files: Files,
        directory: PurePosixPath,
        *,
        fence: Fence,
        mark: Perhaps = no_mark,
    ) -> None:
        self.directory = directory
        self._files = files
        self._fence = fence
        self._mark = mark
        self._entries: dict[str, FileEntry] = {}

    def open(self) -> None:
        """Create the directory and spend its name."""
        self._files.mkdir(self.directory)
        self._files.fsync_dir(self.directory.parent)

    def mkdir(self, name: str) -> PurePosixPath:
        """A directory inside, for a foreign writer; synced by `commit`."""
        path = self.directory / name
        with self._standing():
            self._files.mkdir(path)
        return path

    def write(self, name: str, data: bytes) -> None:
        """A payload file, synced. `name` is relative, with forward slashes."""
        with self._standing():
            write_file(self._files, self.directory / name, data=data)
        self._record(FileEntry(name=name, size=len(data), sha256=sha256(data)))

    def add(self, prefix: str, entries: Iterable[FileEntry]) -> None:
        """Files below `prefix` that their writer synced and digested already."""
        for entry in entries:
            self._record(
                FileEntry(name=f"{prefix}/{entry.name}", size=entry.size, sha256=entry.sha256)
            )

    def seal(self, prefix: str) -> None:
        """Sync and digest every file that a foreign writer left below `prefix`."""
        with self._standing():
            _, found = walk(self._files, self.directory / prefix)
            for path in found:
                self._files.fsync_file(path)
                size, digest = digest_file(self._files, path)
                name = str(path.relative_to(self.directory))
                self._record(FileEntry(name=name, size=size, sha256=digest))

    def _record(self, entry: FileEntry) -> None:
        if entry.name in self._entries:
            raise InvariantError(f"{self.directory}: {entry.name} is written twice")
        self._entries[entry.name] = entry

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Payload files so far, by name."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    def commit(self, manifest: Manifest, live: PurePosixPath) -> None:
        """Publish under `live`. When this returns the tree is durable and may be acknowledged."""
        with self._standing():
            self._commit(manifest, live)

    @contextlib.contextmanager
    def _standing(self) -> Iterator[None]:
        """A tree that has gone was swept: by whom, the fence says."""
        try:
            yield
        except FileNotFoundError:
            self._fence.check()
            raise

    def _commit(self, manifest: Manifest, live: PurePosixPath) -> None:
        directories, found = walk(self._files, self.directory)
        self._expect_listed(found)
        data = encode(manifest)
        self.write_manifest(data)
        self._mark("after_manifest")
        self.sync_directories(directories)
        self.write_marker(data)
        self._mark("after_marker")
        self._files.fsync_dir(self.directory)
        self._fence.check()
        self._mark("before_rename")
        self._files.rename(self.directory, live)
        self._mark("after_rename")
        self._files.fsync_dir(live.parent)

    def write_manifest(self, data: bytes) -> None:
        write_file(self._files, self.directory / MANIFEST, data=data)

    def sync_directories(self, directories: Sequence[PurePosixPath]) -> None:
        for path in directories:
            self._files.fsync_dir(path)

    def write_marker(self, manifest: bytes) -> None:
        write_file(self._files, self.directory / COMMITTED, data=sha256(manifest).encode() + b"\n")

    def _expect_listed(self, found: Sequence[PurePosixPath]) -> None:
        names = {str(path.relative_to(self.directory)) for path in found}
        if names != self._entries.keys():
            odd = sorted(names ^ self._entries.keys())
            raise InvariantError(f"{self.directory}: {odd[0]} is not both written and listed")

    def abandon(self) -> None:
        """Remove what was written, as far as disk and fence let us; a sweep does the rest."""
        with contextlib.suppress(DiskError, Fenced, FileNotFoundError):
            self._fence.check()
            remove_tree(self._files, self.directory)


def publish_file(files: Files, path: PurePosixPath, *, data: bytes) -> None:
    """Create one durable file under a name that must be free, never visible half-written.

    Raises FileExistsError when the name is taken. Where hard links are impossible the exclusion
    rests on the run lock alone.
    """
    temporary = _spare_name(files, path)
    try:
        write_file(files, temporary, data=data)
        try:
            files.link(temporary, path)
        except LinkRefused:
            if files.exists(path):
                raise FileExistsError(str(path)) from None
            files.rename(temporary, path)
        files.fsync_dir(path.parent)
    finally:
        with contextlib.suppress(DiskError, FileNotFoundError):
            files.unlink(temporary)


def _spare_name(files: Files, path: PurePosixPath) -> PurePosixPath:
    """A free ``tmp_`` name beside `path`; earlier ones may be left over from a crash."""
    taken = set(files.list(path.parent))
    number = 0
    while f"tmp_{number}_{path.name}" in taken:
        number += 1
    return path.parent / f"tmp_{number}_{path.name}"


def replace_file(files: Files, path: PurePosixPath, *, data: bytes) -> None:
    """Put new durable content under a name that may be taken, atomically."""
    temporary = _spare_name(files, path)
    write_file(files, temporary, data=data)
    files.rename(temporary, path)
    files.fsync_dir(path.parent)
