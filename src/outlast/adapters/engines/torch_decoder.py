"""What the engine's scheduler asks of a model: prefill, decode, copy, over slots of a KV cache.

Slots 0..n-1 are in use, without holes: whoever leaves is replaced by the last one.
May import: torch, numpy, `adapters.torch_model`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlast.adapters.torch_model import State, copy_state, empty_model, named_state
from outlast.rows import Int32

Int64 = NDArray[np.int64]


class Decoder(Protocol):
    """A causal language model over slots. Logits are float32 [n, V]; V is `vocabulary_size`."""

    vocabulary_size: int
    max_length: int

    def load(self, state: State) -> None:
        """Take new weights and keep the cache. Raises InvariantError and changes nothing."""
        ...

    def reserve(self, slots: int, length: int) -> None:
        """Make room for `slots` sequences of up to `length` tokens."""
        ...

    def prefill(self, first: int, sequences: Sequence[Int32]) -> Tensor:
        """Fill slots first.. with `sequences`; logits after the last token of each."""
        ...

    def decode(self, first: int, *, tokens: Int64, lengths: Int64) -> Tensor:
        """Append one token to each of the n slots first.., which hold `lengths` tokens so far."""
        ...

    def copy_slot(self, source: int, target: int, *, length: int) -> None:
        """Make slot `target` a copy of the first `length` tokens of slot `source`."""
        ...

    def drop_last(self, slots: int) -> None:
        """Only the first `slots` slots are still in use."""
        ...


class GenericDecoder:
    """Any Hugging Face causal model, one sequence at a time through its own cache.

    Correct for every architecture and never dependent on the batch, but slow: it is the fallback
    for models that `LlamaDecoder` does not cover.
    """

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        self.vocabulary_size = int(config.vocab_size)
        self.max_length = int(getattr(config, "max_position_embeddings", 1 << 30))
        self._device = device
        self._model = empty_model(config, dtype=dtype).to(device)
        self._state = named_state(self._model)
        # Newer releases of transformers call the cache `cache`, older ones `past_key_values`.
        parameters = inspect.signature(self._model.forward).parameters
        self._keyword = "cache" if "cache" in parameters else "past_key_values"
        self._caches: list[Any] = []

    def load(self, state: State) -> None:
        copy_state(state, self._state)

    def reserve(self, slots: int, length: int) -> None:
        self._caches += [None] * (slots - len(self._caches))

    def prefill(self, first: int, sequences: Sequence[Int32]) -> Tensor:
        logits = []
        for slot, sequence in enumerate(sequences, start=first):
            self._caches[slot] = None
            logits.append(self._forward(slot, sequence.astype(np.int64)))
        return torch.stack(logits)

    def decode(self, first: int, *, tokens: Int64, lengths: Int64) -> Tensor:
        rows = range(len(tokens))
        return torch.stack([self._forward(first + row, tokens[row : row + 1]) for row in rows])

    def _forward(self, slot: int, tokens: Int64) -> Tensor:
        ids = torch.from_numpy(tokens).to(self._device)[None]
        cached = {self._keyword: self._caches[slot]}
        output = self._model(input_ids=ids, use_cache=True, **cached)
        self._caches[slot] = getattr(output, self._keyword)
        logits: Tensor = output.logits[0, -1].float()
        return logits

    def copy_slot(self, source: int, target: int, *, length: int) -> None:
        self._caches[target] = copy.deepcopy(self._caches[source])

    def drop_last(self, slots: int) -> None:
        self._caches[slots:] = [None] * (len(self._caches) - slots)


def make_decoder(
    directory: Path, *, dtype: torch.dtype, device: torch.device, generic: bool
) -> Decoder:
    """The fastest decoder that covers the model of `directory`; `generic` forces the fallback."""
    from outlast.adapters.engines.torch_llama import LlamaDecoder, covers
    from outlast.adapters.torch_model import load_config

    config = load_config(directory)
    if covers(config) and not generic:
        return LlamaDecoder(config, dtype=dtype, device=device)
    return GenericDecoder(config, dtype=dtype, device=device)
