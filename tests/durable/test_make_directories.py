"""A run directory may lie below directories that do not exist yet (`outlast train` in a clone)."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.durable.files import make_directories, make_directory
from tests.durable.disks import both_disks, make_disk


@both_disks
def test_missing_parents_are_made_from_the_top(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    make_directories(files, root / "runs" / "of" / "mine")
    make_directories(files, root / "runs" / "of" / "mine")
    assert files.list(root / "runs") == ("of",)
    assert files.list(root / "runs" / "of") == ("mine",)


@both_disks
def test_inside_a_run_a_missing_parent_stays_an_error(kind: str, tmp_path: Path) -> None:
    files, root = make_disk(kind, tmp_path)
    with pytest.raises(FileNotFoundError):
        make_directory(files, root / "gone" / "segments")
    assert files.list(root) == ()
