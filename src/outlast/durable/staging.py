"""A directory built beside its name, so that the name leads to nothing or to all of it.

    <target><suffix>/lock           held by whoever builds
    <target><suffix>/unfinished/    renamed to <target> when it is whole and synced

What a kill leaves is removed by the next try, but only when nobody holds its lock, this host wrote
it and it holds nothing else; otherwise the refusal says what to do. Nobody ever builds in a tree
that another one may remove: clearing and building happen under one lock. Used by fork and export.
Keeps A3 and A4 for both. May import: `files`, `lock`, `names`, `errors`, `world`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePosixPath

from outlast.durable import lock, names
from outlast.durable.files import FileLock, Files, remove_tree, walk
from outlast.errors import DiskError, NotRestorable
from outlast.world import World

UNFINISHED = "unfinished"


@contextlib.contextmanager
def staged(
    files: Files, target: PurePosixPath, *, suffix: str, world: World, sync: bool = False
) -> Iterator[PurePosixPath]:
    """A new directory to fill; without an error it becomes `target`, durably, when the block ends.

    `target` must be absent or an empty directory, its parent must exist. `sync` makes durable what
    writers of other packages left unsynced. Raises NotRestorable when somebody builds there or
    something unknown stands there, DiskError; then `target` is as it was.
    """
    require_free(files, target)
    outer = target.parent / f"{target.name}{suffix}"
    held = _claimed(files, outer, world=world)
    try:
        directory = outer / UNFINISHED
        files.mkdir(directory)
        yield directory
        if sync:
            sync_tree(files, directory)
        files.rename(directory, target)
        files.fsync_dir(target.parent)
    finally:
        with contextlib.suppress(DiskError, FileNotFoundError):
            _cleared(files, outer)
            files.unlink(outer / names.LOCK)
            files.rmdir(outer)
        held.release()


def require_free(files: Files, target: PurePosixPath) -> None:
    """Raises NotRestorable unless `target` is absent or an empty directory."""
    try:
        held = files.list(target)
    except FileNotFoundError:
        held = (target.name,) if files.exists(target) else ()
    if held:
        raise NotRestorable(
            f"{target} holds {', '.join(held[:5])}; required: an empty directory, or none. "
            "Nothing was changed. Choose another one."
        )


def sync_tree(files: Files, top: PurePosixPath) -> None:
    """Make every file and directory below `top` durable, and `top`."""
    directories, found = walk(files, top)
    for path in found:
        files.fsync_file(path)
    for path in directories:
        files.fsync_dir(path)


def _claimed(files: Files, outer: PurePosixPath, *, world: World) -> FileLock:
    """The lock of `outer`, which then holds nothing else."""
    with contextlib.suppress(FileExistsError):
        files.mkdir(outer)
    try:
        _expect_known(files, outer)
        held = files.try_lock(outer / names.LOCK)
        if held is None:
            raise _busy(outer, lock.process(lock.content_of(files.read(outer / names.LOCK))))
        try:
            _expect_own(held, outer, world=world)
            lock.RunLock(held, world).beat()
            if files.read(outer / names.LOCK) != held.read():  # it was removed before we got it
                raise _busy(outer, "somebody who has just come")
            files.fsync_dir(outer)  # a lock always stands beside what is unfinished
            _cleared(files, outer)
        except BaseException:
            held.release()
            raise
    except FileNotFoundError as error:
        raise _busy(outer, "somebody who has just finished") from error
    return held


def _expect_known(files: Files, outer: PurePosixPath) -> None:
    if not files.stat(outer).is_dir:
        raise NotRestorable(f"{outer} is a file. Nothing was changed. Move it, or name another.")
    found = set(files.list(outer))
    odd = sorted(found - {names.LOCK, UNFINISHED})
    if UNFINISHED in found and names.LOCK not in found:
        odd.append(UNFINISHED)
    if odd:
        raise NotRestorable(
            f"{outer} holds {', '.join(odd[:5])}; required: nothing, or what a killed try left "
            f"({names.LOCK} and {UNFINISHED}/). Nothing was changed. Move it away, or choose "
            "another name for the new directory."
        )


def _expect_own(held: FileLock, outer: PurePosixPath, *, world: World) -> None:
    """A lock that this host finds free proves nothing about a process of another host."""
    content = lock.content_of(held.read())
    if content is not None and content.host != world.identity.host:
        raise NotRestorable(
            f"{outer} was left, or is being filled, by {lock.process(content)}. Nothing was "
            f"changed. If that process is gone, remove {outer} and try again."
        )


def _busy(outer: PurePosixPath, who: str) -> NotRestorable:
    return NotRestorable(
        f"{outer} is being filled by {who}. Nothing was changed. Wait for it, or choose another "
        "name for the new directory."
    )


def _cleared(files: Files, outer: PurePosixPath) -> None:
    if UNFINISHED in files.list(outer):
        remove_tree(files, outer / UNFINISHED)
        files.fsync_dir(outer)
