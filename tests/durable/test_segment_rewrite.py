"""P6: a snapshot's bytes follow what lives, also when everything stands in the open segment."""

from __future__ import annotations

import errno
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from outlast.durable.files import Bytes, PosixFiles, Writer
from outlast.durable.segments import Held, SegmentStore
from outlast.errors import DiskFull
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.rows import Row, row_digest

ONE = Incarnation(1)


def held(group: int, *, tokens: int = 64) -> Held:
    row = Row(
        key=AttemptKey(group=GroupId(group), sibling=SiblingIndex(0), incarnation=ONE, n=0),
        prompt_ids=np.arange(4, dtype=np.int32),
        response_ids=np.full(tokens, group, dtype=np.int32),
        logprobs=np.zeros(tokens, dtype=np.float32),
        weight_versions=np.zeros(tokens, dtype=np.int32),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        reward=1.0,
        mask_sample=False,
    )
    return Held(row, row_digest(row))


def by_key(rows: list[Held]) -> dict[AttemptKey, Held]:
    return {item.row.key: item for item in rows if item.row is not None}


def save(store: SegmentStore, rows: list[Held], directory: Path) -> int:
    directory.mkdir()
    entries = store.save(by_key(rows), PurePosixPath(directory), link=True)
    return sum(entry.size for entry in entries if entry.name.endswith(".arrow"))


def loaded(directory: Path, rows: list[Held]) -> dict[AttemptKey, Held]:
    other = SegmentStore(
        PosixFiles(), PurePosixPath(directory.parent / "again"), incarnation=Incarnation(2)
    )
    return other.load(PurePosixPath(directory), frozenset(by_key(rows)))


def test_a_mostly_dead_open_segment_is_rewritten_instead_of_linked(tmp_path: Path) -> None:
    store = SegmentStore(PosixFiles(), PurePosixPath(tmp_path / "segments"), incarnation=ONE)
    rows = [held(group) for group in range(200)]
    store.append(rows)
    dead, live = rows[:-10], rows[-10:]
    store.release(by_key(dead))
    small = save(store, live, tmp_path / "first")
    whole = SegmentStore(PosixFiles(), PurePosixPath(tmp_path / "whole"), incarnation=ONE)
    whole.append(rows)
    everything = save(whole, rows, tmp_path / "image")
    assert small * 4 < everything
    assert [p.name for p in (tmp_path / "segments").iterdir()] == ["seg_i000001_000002.arrow"]
    found = loaded(tmp_path / "first", live)
    assert {k: v.digest for k, v in found.items()} == {k: v.digest for k, v in by_key(live).items()}


class FailingFiles(PosixFiles):
    """Refuses to create the file of a given name."""

    refuse = ""

    def create(self, path: PurePosixPath, /) -> Writer:
        writer = super().create(path)
        return _Full(writer) if path.name == self.refuse else writer


class _Full:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def write(self, data: Bytes, /) -> None:
        raise DiskFull(f"write: {errno.errorcode[errno.ENOSPC]}")

    def fsync(self) -> None:
        self._writer.fsync()

    def close(self) -> None:
        self._writer.close()


def test_a_disk_full_during_the_rewrite_loses_no_row_and_links_no_unfinished_segment(
    tmp_path: Path,
) -> None:
    files = FailingFiles()
    store = SegmentStore(files, PurePosixPath(tmp_path / "segments"), incarnation=ONE)
    rows = [held(group) for group in range(100)]
    store.append(rows)
    live = rows[-5:]
    store.release(by_key(rows[:-5]))
    files.refuse = "seg_i000001_000002.arrow"
    (tmp_path / "failed").mkdir()
    with pytest.raises(DiskFull):
        store.save(by_key(live), PurePosixPath(tmp_path / "failed"), link=True)
    files.refuse = ""
    save(store, live, tmp_path / "next")
    assert set(loaded(tmp_path / "next", live)) == set(by_key(live))
