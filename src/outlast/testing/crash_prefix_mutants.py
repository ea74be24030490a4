"""Mutants of what is saved of unfinished attempts: see `crash_mutants`.

May import: `durable`, `testing.crash_*`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import PurePosixPath
from unittest import mock

from outlast.durable import cutcodec, names
from outlast.durable.files import Files, write_file
from outlast.durable.manifest import FileEntry, Manifest, sha256
from outlast.durable.publish import TmpTree
from outlast.durable.verify import verify_file
from outlast.testing.crash_mutants import Mutant, skipping_fsync


def _is_prefixes(path: str) -> bool:
    return path.endswith(f"/{names.PREFIXES}")


def _written_after_marker() -> AbstractContextManager[object]:
    """The manifest names the file, and it follows when the cut has its live name."""
    write, commit = TmpTree.write, TmpTree.commit
    late: list[tuple[str, bytes]] = []

    def put_off(self: TmpTree, name: str, *rest: bytes) -> None:
        (data,) = rest
        if not _is_prefixes(f"/{name}"):
            return write(self, name, data)
        late.append((name, data))
        return self._record(FileEntry(name=name, size=len(data), sha256=sha256(data)))

    def commit_first(self: TmpTree, manifest: Manifest, *to: PurePosixPath) -> None:
        (live,) = to
        commit(self, manifest, live)
        for name, data in late:
            write_file(self._files, live / name, data=data)
            self._files.fsync_dir((live / name).parent)
        late.clear()

    def as_listed(self: TmpTree, found: Sequence[PurePosixPath]) -> None:
        """The check that would refuse it is part of what the mutant removes."""

    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(TmpTree, "write", put_off))
    stack.enter_context(mock.patch.object(TmpTree, "commit", commit_first))
    stack.enter_context(mock.patch.object(TmpTree, "_expect_listed", as_listed))
    return stack


def _not_verified() -> AbstractContextManager[object]:
    def verify(files: Files, directory: PurePosixPath, *, entry: FileEntry) -> None:
        if not _is_prefixes(f"/{entry.name}"):
            verify_file(files, directory, entry=entry)

    return mock.patch.object(cutcodec, "verify_file", verify)


PREFIX_MUTANTS: tuple[Mutant, ...] = (
    Mutant("prefix file not synced", skipping_fsync(_is_prefixes)),
    Mutant("prefix file written after COMMITTED", _written_after_marker),
    Mutant("prefix file not verified when read", _not_verified),
)
