"""`Files`: both implementations behave alike, and errors keep their meaning (P4)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.files import (
    LinkRefused,
    PosixFiles,
    Stat,
    digest_file,
    make_directory,
    remove_tree,
    walk,
    write_file,
)
from outlast.durable.manifest import sha256
from outlast.errors import DiskError, DiskFull
from tests.durable.disks import both_disks, make_disk


@both_disks
def test_written_bytes_read_back(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    write_file(files, root / "a", data=b"hello world")
    assert files.read(root / "a") == b"hello world"
    assert b"".join(files.chunks(root / "a")) == b"hello world"
    assert files.read_at(root / "a", offset=6, length=99) == b"world"
    assert files.read_at(root / "a", offset=0, length=5) == b"hello"
    assert files.stat(root / "a") == Stat(size=11, is_dir=False)
    assert files.stat(root) == Stat(size=0, is_dir=True)
    assert digest_file(files, root / "a") == (11, sha256(b"hello world"))
    files.fsync_file(root / "a")


@both_disks
def test_names_are_listed_in_order_and_moved_atomically(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    for name in ("b", "a"):
        files.mkdir(root / name)
    write_file(files, root / "a" / "x", data=b"1")
    files.link(root / "a" / "x", root / "b" / "y")
    files.rename(root / "a", root / "c")
    assert files.list(root) == ("b", "c")
    files.unlink(root / "c" / "x")
    assert files.read(root / "b" / "y") == b"1", "a hard link must outlive the other name"
    files.rename(root / "b" / "y", root / "c" / "z")
    files.rmdir(root / "b")
    assert files.list(root) == ("c",)
    assert walk(files, root) == ((root / "c", root), (root / "c" / "z",))
    remove_tree(files, root / "c")
    assert files.list(root) == ()


@both_disks
def test_missing_and_taken_names_are_told_apart(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    write_file(files, root / "file", data=b"")
    missing = root / "none"
    for call in (files.read, files.stat, files.list, files.unlink, files.rmdir, files.fsync_dir):
        with pytest.raises(FileNotFoundError):
            call(missing)
    with pytest.raises(FileNotFoundError):
        files.list(root / "file")
    with pytest.raises(FileNotFoundError):
        files.read(root / "file" / "below")
    for taken in (files.mkdir, files.create):
        with pytest.raises(FileExistsError):
            taken(root / "file")
    with pytest.raises(FileExistsError):
        files.link(root / "file", root / "file")
    assert files.exists(root / "file") and not files.exists(missing)


@both_disks
def test_directories_with_content_are_neither_removed_nor_replaced(
    kind: str, tmp_path: Path
) -> None:
    files, root = make_disk(kind, tmp_path)
    for name in ("full", "other"):
        files.mkdir(root / name)
        write_file(files, root / name / "x", data=b"")
    with pytest.raises(DiskError):
        files.rmdir(root / "full")
    with pytest.raises(DiskError):
        files.rename(root / "other", root / "full")
    with pytest.raises(DiskError):
        files.unlink(root / "full")
    with pytest.raises(DiskError):
        files.read(root / "full")


@both_disks
def test_make_directory_is_idempotent(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    make_directory(files, root / "a")
    make_directory(files, root / "a")
    assert files.list(root) == ("a",)


@both_disks
def test_a_lock_is_exclusive_and_its_content_is_readable(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    held = files.try_lock(root / "lock")
    assert held is not None
    held.write(b"a long content")
    held.write(b"me")
    assert held.read() == b"me" == files.read(root / "lock")
    assert files.try_lock(root / "lock") is None
    held.release()
    held.release()
    again = files.try_lock(root / "lock")
    assert again is not None
    again.release()


def raising(number: int) -> object:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskError)],
)
def test_errno_decides_the_class_and_the_message_names_path_and_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DiskError]
) -> None:
    writer = PosixFiles().create(PurePosixPath(tmp_path, "a"))
    for call, operation in (("write", "write"), ("fsync", "fsync")):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, raising(number))
            with pytest.raises(kind, match=rf"{operation} .*/a: {errno.errorcode[number]}") as got:
                writer.write(b"x") if call == "write" else writer.fsync()
            assert type(got.value) is kind
    writer.close()
    writer.close()


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_a_filesystem_without_links_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "link", raising(number))
    with pytest.raises(LinkRefused):
        PosixFiles().link(PurePosixPath(tmp_path, "a"), PurePosixPath(tmp_path, "b"))


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:3])))
    write_file(PosixFiles(), PurePosixPath(tmp_path, "a"), data=b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_lock_that_fails_is_an_error_not_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fcntl.flock", raising(errno.EIO))
    with pytest.raises(DiskError):
        PosixFiles().try_lock(PurePosixPath(tmp_path, "lock"))


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    """The parent forks a child that outlives it; the lock must be free."""
    script = (
        "import os, sys, time\n"
        "from pathlib import PurePosixPath\n"
        "from outlast.durable.files import PosixFiles\n"
        "held = PosixFiles().try_lock(PurePosixPath(sys.argv[1]))\n"
        "if os.fork() == 0:\n"
        "    os.close(1)\n"
        "    time.sleep(5)\n"
    )
    lock = PurePosixPath(tmp_path, "lock")
    subprocess.run([sys.executable, "-c", script, str(lock)], check=True)
    held = PosixFiles().try_lock(lock)
    assert held is not None, "the orphan still holds the lock"
    held.release()
