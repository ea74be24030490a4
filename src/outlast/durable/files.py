"""The only file operations of Outlast, and their POSIX implementation.

Everything durable goes through `Files`, so that the crash disk of `outlast.testing` can record
it and yield every tree that a crash could leave. Keeps P4 (an I/O error is never taken for
corruption): ENOENT and EEXIST keep their Python classes, because callers decide on them; every
other errno becomes `DiskError`, or `DiskFull` for a full disk or quota. May import: `errors`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import stat as stat_module
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from outlast.errors import DiskError, DiskFull

CHUNK_BYTES = 4 << 20
"""Size of one read while streaming a file."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})

Bytes = bytes | bytearray | memoryview


class LinkRefused(DiskError):
    """This filesystem makes no hard link here; copy instead."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What callers may know about a path. `size` is in bytes and 0 for a directory."""

    size: int
    is_dir: bool
    links: int = 1
    """Names of the file; a disk that cannot tell says one."""


class Writer(Protocol):
    """An open file, written from its start by the descriptor that created it."""

    def write(self, data: Bytes, /) -> None:
        """Append all of `data`. Raises DiskFull or DiskError; then part of it may be written."""
        ...

    def fsync(self) -> None:
        """Make the bytes durable. After a failure the file must be abandoned, never retried."""
        ...

    def close(self) -> None:
        """Give the descriptor back. Idempotent."""
        ...


class FileLock(Protocol):
    """A held exclusive lock. Its content only serves messages."""

    def read(self) -> bytes: ...

    def write(self, data: bytes, /) -> None:
        """Replace the content; not synced, and a torn one must be tolerated by readers."""
        ...

    def release(self) -> None:
        """Give the lock back. Idempotent; the file stays."""
        ...


class Files(Protocol):
    """All file operations there are. Paths are absolute.

    Raises FileNotFoundError for a missing path, FileExistsError where something new was asked
    for under a taken name, DiskFull and DiskError for all else.
    """

    def mkdir(self, path: PurePosixPath, /) -> None: ...

    def create(self, path: PurePosixPath, /) -> Writer:
        """Create a file that must not exist."""
        ...

    def fsync_dir(self, path: PurePosixPath, /) -> None:
        """Make the entries of a directory durable (not what they lead to)."""
        ...

    def fsync_file(self, path: PurePosixPath, /) -> None:
        """Make a file durable that a foreign writer wrote and closed."""
        ...

    def rename(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        """Atomic. Replaces a file; a target that is a non-empty directory is a DiskError."""
        ...

    def link(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        """Hard link; `target` must not exist. Raises LinkRefused where links are impossible."""
        ...

    def unlink(self, path: PurePosixPath, /) -> None: ...

    def rmdir(self, path: PurePosixPath, /) -> None: ...

    def list(self, path: PurePosixPath, /) -> tuple[str, ...]:
        """Names in a directory, sorted."""
        ...

    def read(self, path: PurePosixPath, /) -> bytes: ...

    def read_at(self, path: PurePosixPath, /, *, offset: int, length: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def chunks(self, path: PurePosixPath, /) -> Iterator[bytes]:
        """The whole file in pieces of bounded size."""
        ...

    def stat(self, path: PurePosixPath, /) -> Stat: ...

    def exists(self, path: PurePosixPath, /) -> bool: ...

    def try_lock(self, path: PurePosixPath, /) -> FileLock | None:
        """Take the exclusive lock of a file, creating it; None when another holder has it."""
        ...


@contextlib.contextmanager
def _reported(operation: str, path: PurePosixPath) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError):
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, f"{operation}: {error.strerror}", str(path)) from error
    except OSError as error:
        raise _translated(error, operation, path=path) from error


def _translated(error: OSError, operation: str, *, path: PurePosixPath) -> DiskError:
    name = errno.errorcode.get(error.errno or 0, "unknown errno")
    message = f"{operation} {path}: {name} ({error.strerror})"
    if error.errno in _FULL:
        return DiskFull(f"{message}. Free space on that filesystem.")
    if operation == "link" and error.errno in _NO_LINK:
        return LinkRefused(message)
    return DiskError(f"{message}. Check the disk; nothing was decided from this failure.")


class _PosixWriter:
    def __init__(self, descriptor: int, path: PurePosixPath) -> None:
        self._descriptor = descriptor
        self._path = path

    def write(self, data: Bytes, /) -> None:
        rest = memoryview(data).cast("B")
        with _reported("write", self._path):
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

    def fsync(self) -> None:
        with _reported("fsync", self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with _reported("close", self._path):
                os.close(descriptor)


class _PosixLock:
    """A flock. A forked child closes its copy, or it would keep the lock of a dead parent."""

    def __init__(self, descriptor: int, path: PurePosixPath) -> None:
        self._descriptor = descriptor
        self._path = path
        os.register_at_fork(after_in_child=self._forget)

    def read(self) -> bytes:
        with _reported("read", self._path):
            return os.pread(self._descriptor, CHUNK_BYTES, 0)

    def write(self, data: bytes, /) -> None:
        with _reported("write", self._path):
            os.pwrite(self._descriptor, data, 0)
            os.ftruncate(self._descriptor, len(data))

    def release(self) -> None:
        self._forget()

    def _forget(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)  # in a child this leaves the parent's lock in place


class PosixFiles:
    """`Files` on a real filesystem."""

    def mkdir(self, path: PurePosixPath, /) -> None:
        with _reported("mkdir", path):
            os.mkdir(path)

    def create(self, path: PurePosixPath, /) -> Writer:
        with _reported("create", path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return _PosixWriter(os.open(path, flags, 0o644), path)

    def fsync_dir(self, path: PurePosixPath, /) -> None:
        self._fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def fsync_file(self, path: PurePosixPath, /) -> None:
        self._fsync(path, os.O_RDONLY)

    def _fsync(self, path: PurePosixPath, flags: int) -> None:
        with _reported("fsync", path):
            descriptor = os.open(path, flags | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def rename(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        with _reported("rename", source):
            os.rename(source, target)

    def link(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        with _reported("link", source):
            os.link(source, target)

    def unlink(self, path: PurePosixPath, /) -> None:
        with _reported("unlink", path):
            os.unlink(path)

    def rmdir(self, path: PurePosixPath, /) -> None:
        with _reported("rmdir", path):
            os.rmdir(path)

    def list(self, path: PurePosixPath, /) -> tuple[str, ...]:
        with _reported("list", path):
            return tuple(sorted(os.listdir(path)))

    def read(self, path: PurePosixPath, /) -> bytes:
        with _reported("read", path), open(path, "rb", buffering=0) as handle:
            return handle.readall()

    def read_at(self, path: PurePosixPath, /, *, offset: int, length: int) -> bytes:
        with _reported("read", path), open(path, "rb", buffering=0) as handle:
            pieces = bytearray()
            while len(pieces) < length:
                piece = os.pread(handle.fileno(), length - len(pieces), offset + len(pieces))
                if not piece:
                    break
                pieces += piece
            return bytes(pieces)

    def chunks(self, path: PurePosixPath, /) -> Iterator[bytes]:
        with _reported("read", path), open(path, "rb", buffering=0) as handle:
            while piece := handle.read(CHUNK_BYTES):
                yield piece

    def stat(self, path: PurePosixPath, /) -> Stat:
        with _reported("stat", path):
            found = os.stat(path)
        is_dir = stat_module.S_ISDIR(found.st_mode)
        size, links = (0, 1) if is_dir else (found.st_size, found.st_nlink)
        return Stat(size=size, is_dir=is_dir, links=links)

    def exists(self, path: PurePosixPath, /) -> bool:
        try:
            self.stat(path)
        except FileNotFoundError:
            return False
        return True

    def try_lock(self, path: PurePosixPath, /) -> FileLock | None:
        with _reported("lock", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:
                os.close(descriptor)
                raise
        return _PosixLock(descriptor, path)


# ------------------------------------------------------------------------- compositions


def write_file(files: Files, path: PurePosixPath, *, data: Bytes) -> None:
    """Create `path` with `data`, synced through the descriptor that wrote it."""
    writer = files.create(path)
    try:
        writer.write(data)
        writer.fsync()
    finally:
        writer.close()


def digest_file(files: Files, path: PurePosixPath) -> tuple[int, str]:
    """(size in bytes, hex sha256) of a file, read in pieces."""
    digest, size = hashlib.sha256(), 0
    for piece in files.chunks(path):
        digest.update(piece)
        size += len(piece)
    return size, digest.hexdigest()


def make_directory(files: Files, path: PurePosixPath) -> None:
    """Make `path` exist durably; its parent must exist. No-op where it does."""
    if not files.exists(path):
        with contextlib.suppress(FileExistsError):
            files.mkdir(path)
        files.fsync_dir(path.parent)


def make_directories(files: Files, path: PurePosixPath) -> None:
    """Make `path`, and whatever is missing above it, exist durably."""
    try:
        make_directory(files, path)
    except FileNotFoundError:
        make_directories(files, path.parent)
        make_directory(files, path)


def walk(
    files: Files, top: PurePosixPath
) -> tuple[tuple[PurePosixPath, ...], tuple[PurePosixPath, ...]]:
    """(directories bottom-up with `top` last, files sorted) of the tree below `top`."""
    directories: list[PurePosixPath] = []
    found: list[PurePosixPath] = []
    for name in files.list(top):
        path = top / name
        if files.stat(path).is_dir:
            below, inside = walk(files, path)
            directories += below
            found += inside
        else:
            found.append(path)
    return (*directories, top), tuple(sorted(found))


def remove_tree(files: Files, top: PurePosixPath) -> None:
    """Delete a tree; what has gone already is no error. Callers rename it away first."""
    directories, found = walk(files, top)
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(path)
    for path in directories:
        with contextlib.suppress(FileNotFoundError):
            files.rmdir(path)
