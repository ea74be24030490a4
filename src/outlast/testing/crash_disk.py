"""An in-memory disk that can crash: `Files` with durability modelled, faults injected, and death.

Used by the crash enumeration (every state) and by the simulator (one drawn state per crash).
Deterministic, and fast enough for some ten thousand states a minute. Two differences from a real
filesystem are on the safe side: fsync of a file makes no directory entry durable, and directories
are independent of one another. May import: `durable.files`, `errors`, `testing.crash_image`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from outlast.durable.files import Bytes, FileLock, LinkRefused, Stat, Writer
from outlast.errors import DiskError, DiskFull
from outlast.testing.crash_image import (
    ROOT,
    DirNode,
    EntryOp,
    FileNode,
    Image,
    drawn_image,
    ordered_images,
    visible_image,
    weak_images,
)


class FaultKind(StrEnum):
    """What goes wrong with a call."""

    EIO = "EIO"
    ENOSPC = "ENOSPC"
    SHORT_WRITE = "short write"
    """Half of the bytes arrive, then the disk is full."""


_ALLOCATING = frozenset(
    {"mkdir", "create", "write", "fsync", "fsync_dir", "fsync_file", "link", "rename"}
)
_FAILING = {
    FaultKind.ENOSPC: _ALLOCATING,
    FaultKind.SHORT_WRITE: frozenset({"write"}),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Call number `at` (from 0) fails, once or from then on."""

    at: int
    kind: FaultKind
    persistent: bool = False

    def hits(self, number: int, operation: str) -> bool:
        due = number >= self.at if self.persistent else number == self.at
        return due and (self.kind is FaultKind.EIO or operation in _FAILING[self.kind])


def _no_guard() -> None:
    pass


class CrashDisk:
    """`Files` in memory. `guard` runs before every call: a dead simulated life raises there."""

    def __init__(
        self,
        image: Image | None = None,
        *,
        guard: Callable[[], None] = _no_guard,
        links: bool = True,
    ) -> None:
        self.guard = guard
        self.on_change: Callable[[str], None] = lambda what: None
        """Called after every change with its description: the points where a crash may come."""
        self.fault: Fault | None = None
        self.faults_hit = 0
        self.calls = 0
        """Calls so far: what `Fault.at` counts."""
        self._links = links
        self._dirs: dict[int, DirNode] = {ROOT: DirNode()}
        self._files: dict[int, FileNode] = {}
        self._locked: dict[int, FileLock] = {}
        self._next = ROOT + 1
        if image is not None:
            self._restore(image)

    def _restore(self, image: Image) -> None:
        for inode, entries in image.dirs.items():
            self._dirs[inode] = DirNode(entries=dict(entries), durable=dict(entries))
        for inode, data in image.files.items():
            self._files[inode] = FileNode(content=bytearray(data), durable=data)
        self._next = 1 + max([*image.dirs, *image.files, ROOT])

    # ---------------------------------------------------------------------- crash states

    def visible(self) -> Image:
        """The tree as programs see it (model K)."""
        return visible_image(self._dirs, self._files)

    def ordered(self, *, cap: int = 4096) -> Iterator[Image]:
        """Trees of model O; with more than `cap` combinations a fixed sample."""
        return ordered_images(self._dirs, self._files, cap=cap)

    def weak(self, *, cap: int = 64) -> Iterator[Image]:
        """Trees of model P, capped."""
        return weak_images(self._dirs, self._files, cap=cap)

    def crash(self, rng: random.Random) -> CrashDisk:
        """A new disk in one state that a crash now could leave; locks are gone."""
        return CrashDisk(drawn_image(self._dirs, self._files, rng=rng), links=self._links)

    def kill(self) -> CrashDisk:
        """A new disk as a mere process kill leaves it: everything written stays."""
        return CrashDisk(self.visible(), links=self._links)

    def rot(self, path: PurePosixPath, *, at: int) -> None:
        """Flip the lowest bit of one byte, as a failing medium does, unseen by anyone."""
        self._file(path).content[at] ^= 1

    # ----------------------------------------------------------------------- bookkeeping

    @contextlib.contextmanager
    def _call(self, operation: str, path: PurePosixPath) -> Iterator[None]:
        self.guard()
        number, self.calls = self.calls, self.calls + 1
        if self.fault is not None and self.fault.hits(number, operation):
            self._fail(operation, path)
        yield

    def _fail(self, operation: str, path: PurePosixPath) -> None:
        assert self.fault is not None
        self.faults_hit += 1
        message = f"{operation} {path}: {self.fault.kind} (injected)"
        if self.fault.kind is FaultKind.EIO:
            raise DiskError(message)
        raise DiskFull(message)

    def _changed(self, operation: str, path: PurePosixPath) -> None:
        self.on_change(f"{operation} {path}")

    def _find(self, path: PurePosixPath) -> int | None:
        inode = ROOT
        for part in path.parts[1:]:
            node = self._dirs.get(inode)
            if node is None or part not in node.entries:
                return None
            inode = node.entries[part]
        return inode

    def _inode(self, path: PurePosixPath) -> int:
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(2, "no such file or directory", str(path))
        return inode

    def _dir(self, path: PurePosixPath) -> DirNode:
        node = self._dirs.get(self._inode(path))
        if node is None:
            raise FileNotFoundError(20, "not a directory", str(path))
        return node

    def _file(self, path: PurePosixPath) -> FileNode:
        node = self._files.get(self._inode(path))
        if node is None:
            raise DiskError(f"{path} is a directory")
        return node

    def _add(self, path: PurePosixPath, inode: int) -> None:
        parent = self._dir(path.parent)
        if path.name in parent.entries:
            raise FileExistsError(17, "exists", str(path))
        parent.change(EntryOp(None, path.name, inode))

    def _new(self) -> int:
        inode, self._next = self._next, self._next + 1
        return inode

    # ------------------------------------------------------------------------------ Files

    def mkdir(self, path: PurePosixPath, /) -> None:
        with self._call("mkdir", path):
            inode = self._new()
            self._add(path, inode)
            self._dirs[inode] = DirNode()
        self._changed("mkdir", path)

    def create(self, path: PurePosixPath, /) -> Writer:
        with self._call("create", path):
            inode = self._new()
            self._add(path, inode)
            node = self._files[inode] = FileNode()
        self._changed("create", path)
        return _CrashWriter(self, node, path=path)

    def fsync_dir(self, path: PurePosixPath, /) -> None:
        with self._call("fsync_dir", path):
            self._dir(path).sync()
        self._changed("fsync_dir", path)

    def fsync_file(self, path: PurePosixPath, /) -> None:
        self.fsync_node(self._file(path), path=path)

    def rename(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        with self._call("rename", source):
            inode = self._inode(source)
            self._expect_replaceable(target)
            before, after = self._dir(source.parent), self._dir(target.parent)
            if before is after:
                before.change(EntryOp(source.name, target.name, inode))
            else:
                after.change(EntryOp(None, target.name, inode))
                before.change(EntryOp(source.name, None, inode))
        self._changed("rename", target)

    def _expect_replaceable(self, target: PurePosixPath) -> None:
        taken = self._find(target)
        if taken in self._dirs and self._dirs[taken].entries:
            raise DiskError(f"rename {target}: ENOTEMPTY")

    def link(self, source: PurePosixPath, target: PurePosixPath, /) -> None:
        with self._call("link", source):
            inode = self._inode(source)
            if not self._links:
                raise LinkRefused(f"link {source}: EPERM")
            self._add(target, inode)
        self._changed("link", target)

    def unlink(self, path: PurePosixPath, /) -> None:
        with self._call("unlink", path):
            inode = self._inode(path)
            if inode in self._dirs:
                raise DiskError(f"unlink {path}: EISDIR")
            self._dir(path.parent).change(EntryOp(path.name, None, inode))
        self._changed("unlink", path)

    def rmdir(self, path: PurePosixPath, /) -> None:
        with self._call("rmdir", path):
            inode = self._inode(path)
            if self._dir(path).entries:
                raise DiskError(f"rmdir {path}: ENOTEMPTY")
            self._dir(path.parent).change(EntryOp(path.name, None, inode))
        self._changed("rmdir", path)

    def list(self, path: PurePosixPath, /) -> tuple[str, ...]:
        with self._call("list", path):
            return tuple(sorted(self._dir(path).entries))

    def read(self, path: PurePosixPath, /) -> bytes:
        with self._call("read", path):
            return bytes(self._file(path).content)

    def read_at(self, path: PurePosixPath, /, *, offset: int, length: int) -> bytes:
        with self._call("read", path):
            return bytes(self._file(path).content[offset : offset + length])

    def chunks(self, path: PurePosixPath, /) -> Iterator[bytes]:
        yield self.read(path)

    def stat(self, path: PurePosixPath, /) -> Stat:
        with self._call("stat", path):
            inode = self._inode(path)
            node = self._files.get(inode)
            return Stat(size=len(node.content) if node else 0, is_dir=inode in self._dirs)

    def exists(self, path: PurePosixPath, /) -> bool:
        with self._call("stat", path):
            return self._find(path) is not None

    def try_lock(self, path: PurePosixPath, /) -> FileLock | None:
        if not self.exists(path):
            self.create(path).close()
        with self._call("lock", path):
            inode = self._inode(path)
            if inode in self._locked:
                return None
            held = self._locked[inode] = _CrashLock(self, self._files[inode], path=path)
        return held

    # ------------------------------------------------------------------- used by handles

    def write_node(self, node: FileNode, data: Bytes, *, path: PurePosixPath) -> None:
        """Append in two halves, so that a crash or a short write can come in between."""
        whole = bytes(data)
        half = len(whole) // 2
        self.guard()
        number, self.calls = self.calls, self.calls + 1
        hit = self.fault is not None and self.fault.hits(number, "write")
        if hit and self.fault is not None and self.fault.kind is not FaultKind.SHORT_WRITE:
            self._fail("write", path)
        self._append(node, whole[:half], path=path)
        if hit:
            self._fail("write", path)
        self._append(node, whole[half:], path=path)

    def _append(self, node: FileNode, data: bytes, *, path: PurePosixPath) -> None:
        if data:
            node.content += data
            node.dirty = True
            self._changed("write", path)

    def fsync_node(self, node: FileNode, *, path: PurePosixPath) -> None:
        """Make a file durable; a failure drops its dirty pages for good."""
        try:
            with self._call("fsync", path):
                node.sync()
        except DiskError:
            node.poisoned = node.poisoned or node.dirty
            raise
        self._changed("fsync", path)

    def close_node(self, path: PurePosixPath) -> None:
        with self._call("close", path):
            pass

    def overwrite_node(self, node: FileNode, data: bytes, *, path: PurePosixPath) -> None:
        """Replace content in place, as only the lock file does."""
        with self._call("write", path):
            node.content[:] = data
            node.dirty = True
        self._changed("overwrite", path)

    def unlock_all(self) -> None:
        """Locks of another host ran out, or never reached this one."""
        self._locked.clear()

    def unlock(self, lock: FileLock) -> None:
        """Give `lock` back, unless somebody else has it by now."""
        self._locked = {inode: held for inode, held in self._locked.items() if held is not lock}


class _CrashWriter:
    def __init__(self, disk: CrashDisk, node: FileNode, *, path: PurePosixPath) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._closed = False

    def write(self, data: Bytes, /) -> None:
        self._disk.write_node(self._node, data, path=self._path)

    def fsync(self) -> None:
        self._disk.fsync_node(self._node, path=self._path)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._disk.close_node(self._path)


class _CrashLock:
    def __init__(self, disk: CrashDisk, node: FileNode, *, path: PurePosixPath) -> None:
        self._disk = disk
        self._node = node
        self._path = path

    def read(self) -> bytes:
        return bytes(self._node.content)

    def write(self, data: bytes, /) -> None:
        self._disk.overwrite_node(self._node, data, path=self._path)

    def release(self) -> None:
        self._disk.unlock(self)
