"""Weights cross to another process bit for bit and leave nothing behind. Needs no vLLM."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
import torch

from outlast.adapters.engines.vllm_weights import SharedState, opened, shared

STATE = {
    "a": torch.randn(3, 5),
    "b": torch.randn(7).to(torch.bfloat16),
    "c": torch.arange(4),
    "transposed": torch.randn(4, 6).t(),
    "scalar": torch.tensor(2.5),
    "nothing": torch.zeros(0, 3),
}


def _read(source: SharedState) -> dict[str, torch.Tensor]:
    with opened(source) as tensors:
        return {name: tensor.clone() for name, tensor in tensors}


def _digest(source: SharedState, answer: multiprocessing.SimpleQueue) -> None:  # type: ignore[type-arg]
    found = {name: (str(t.dtype), t.double().sum().item()) for name, t in _read(source).items()}
    answer.put(found)


def test_another_process_reads_the_same_tensors() -> None:
    context = multiprocessing.get_context("spawn")
    answer = context.SimpleQueue()
    with shared(STATE) as source:
        child = context.Process(target=_digest, args=(source, answer))
        child.start()
        found = answer.get()
        child.join(60)
    assert found == {name: (str(t.dtype), t.double().sum().item()) for name, t in STATE.items()}


def test_bits_shapes_and_types_survive() -> None:
    with shared(STATE) as source:
        read = _read(source)
    assert list(read) == list(STATE)
    for name, tensor in STATE.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_readers_cannot_change_the_source() -> None:
    with shared(STATE) as source:
        with opened(source) as tensors:
            for _, tensor in tensors:
                tensor.zero_()
        assert torch.equal(_read(source)["a"], STATE["a"])


def test_nothing_stays_open_or_has_a_name() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyError), shared(STATE) as source:
        assert "(deleted)" in os.readlink(source.path)
        raise KeyError
    assert set(os.listdir("/proc/self/fd")) == before
    assert not Path(source.path).exists()
