"""Trainer checkpoints on disk: exact, closed to code, and clear about what is wrong."""

from __future__ import annotations

import os
import pickle
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from outlast.adapters.trainers.torch_checkpoint import read_checkpoint, write_checkpoint
from outlast.errors import CorruptData, DiskError, DiskFull, NotRestorable


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "model/weight": torch.randn(7, 5, generator=generator),
        "model/half": torch.randn(3, generator=generator).to(torch.bfloat16),
        "optimizer/step": torch.tensor(4.0),
        "version": torch.tensor(4, dtype=torch.int64),
        "rng": torch.arange(200, dtype=torch.uint8),
    }


def blank() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in tensors().items()}


def test_A1_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors())
    loaded = blank()
    read_checkpoint(tmp_path, loaded)
    assert all(torch.equal(loaded[name], value) for name, value in tensors().items())


def test_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    write_checkpoint(tmp_path, tensors())
    names = {Path(path).name.removesuffix(".tmp") for path in synced}
    assert names == {path.name for path in tmp_path.iterdir()}


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors())
    other = blank()
    other["model/extra"] = torch.zeros(1)
    other["model/weight"] = torch.zeros(7, 6)
    del other["rng"]
    with pytest.raises(NotRestorable, match=r"model/extra missing; rng unknown; model/weight is"):
        read_checkpoint(tmp_path, other)


class _Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (_Payload.path,)

    path = ""


def test_P3_a_crafted_index_is_refused_and_not_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tensors())
    _Payload.path = str(tmp_path / "pwned")
    (tmp_path / ".metadata").write_bytes(pickle.dumps(_Payload()))
    with pytest.raises(CorruptData, match="mkdir"):
        read_checkpoint(tmp_path, blank())
    assert not (tmp_path / "pwned").exists()
    (tmp_path / ".metadata").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(CorruptData, match="list"):
        read_checkpoint(tmp_path, blank())


@pytest.mark.parametrize("keep", [0, 10, 200])
def test_truncated_files_are_corrupt(tmp_path: Path, keep: int) -> None:
    write_checkpoint(tmp_path, tensors())
    for path in list(tmp_path.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[:keep])
        with pytest.raises(CorruptData):
            read_checkpoint(tmp_path, blank())
        path.unlink()
        with pytest.raises(CorruptData, match="missing"):
            read_checkpoint(tmp_path, blank())
        path.write_bytes(whole)


@pytest.mark.parametrize(("number", "expected"), [(28, DiskFull), (5, DiskError)])
def test_disk_errors_keep_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(expected) as caught:
        write_checkpoint(tmp_path, tensors())
    assert type(caught.value) is expected


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """A write beyond `size` bytes fails with EFBIG, as the last bytes of a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_wherever_the_disk_is_full_it_is_the_disk_that_failed(tmp_path: Path) -> None:
    """torch's zip writer turns some of these into a RuntimeError about its own position."""
    whole = tmp_path / "whole"
    whole.mkdir()
    # More than one buffer of the file: some writes fail inside the zip writer, some at its end.
    state = {**tensors(), "model/large": torch.ones(5000), "model/larger": torch.ones(9000)}
    write_checkpoint(whole, state)
    largest = max(path.stat().st_size for path in whole.iterdir())
    sizes = sorted({*range(0, largest, 499), 1, 598, 704, largest - 1})
    for number, size in enumerate(sizes):
        directory = tmp_path / f"limited_{number}"
        directory.mkdir()
        with files_no_longer_than(size), pytest.raises(DiskError, match="File too large"):
            write_checkpoint(directory, state)
    with files_no_longer_than(largest):
        write_checkpoint(tmp_path, state)


def test_a_runtime_error_without_a_failed_disk_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise RuntimeError("not the disk")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RuntimeError, match="not the disk"):
        write_checkpoint(tmp_path, tensors())
