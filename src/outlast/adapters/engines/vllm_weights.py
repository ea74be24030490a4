"""Weights from this process into vLLM's, through anonymous memory that dies with both.

The bytes lie in a memfd that the worker opens through /proc: no file has a name, so a kill leaves
nothing behind. May import: torch, `errors`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64

Index = dict[str, tuple[str, list[int], int]]
"""Name -> (dtype, shape, offset in bytes): plain values, so that every serialiser carries it."""


@dataclass(frozen=True, slots=True)
class SharedState:
    """Where a worker of this host finds the tensors."""

    path: str
    index: Index


def plan(state: Mapping[str, Tensor]) -> tuple[Index, int]:
    """The place of every tensor, and the size of it all."""
    index: Index = {}
    end = 0
    for name, tensor in state.items():
        index[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end)
        end += -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return index, end


@contextmanager
def shared(state: Mapping[str, Tensor]) -> Iterator[SharedState]:
    """A copy of `state` that other processes of this user can read until the block ends."""
    index, size = plan(state)
    descriptor = os.memfd_create("outlast-weights")
    try:
        os.ftruncate(descriptor, max(size, 1))
        with mmap.mmap(descriptor, max(size, 1)) as memory:
            for name, target in _views(memory, index):
                target.copy_(state[name])
            target = None  # type: ignore[assignment]  # a view would keep the map open
        yield SharedState(f"/proc/{os.getpid()}/fd/{descriptor}", index)
    finally:
        os.close(descriptor)


@contextmanager
def opened(source: SharedState) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """The tensors of `source`, read in place: copy what must outlive the block."""
    descriptor = os.open(source.path, os.O_RDWR)
    try:
        # Private and writable: torch refuses read-only memory, and nobody must change the source.
        memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_PRIVATE)
    finally:
        os.close(descriptor)
    yield _views(memory, source.index)  # the last view closes the map


def _views(memory: mmap.mmap, index: Index) -> Iterator[tuple[str, Tensor]]:
    for name, (dtype, shape, offset) in index.items():
        kind: torch.dtype = getattr(torch, dtype)
        count = torch.Size(shape).numel()
        if count:
            flat = torch.frombuffer(memory, dtype=kind, count=count, offset=offset)
        else:
            flat = torch.empty(0, dtype=kind)
        yield name, flat.reshape(shape)
