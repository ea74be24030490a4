"""Small random models saved as Hugging Face directories, and a data plane that is a dictionary."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.ports import TrainGroup
from outlast.rows import Row

VOCABULARY = 61


def save_llama(directory: Path, *, tied: bool = True, seed: int = 0) -> Path:
    """Two layers, four heads sharing two key heads, long context."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def save_gpt2(directory: Path, *, seed: int = 0) -> Path:
    """Another architecture: learned positions, biases, LayerNorm, and dropout in its config."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=1024,
        n_embd=32,
        n_layer=2,
        n_head=2,
        initializer_range=0.2,
        eos_token_id=1,
        bos_token_id=1,
    )
    GPT2LMHeadModel(config).save_pretrained(directory)
    return directory


class DictPlane:
    """The one method of a data plane that trainers use."""

    def __init__(self) -> None:
        self.rows: dict[AttemptKey, Row] = {}

    async def get(self, keys: Sequence[AttemptKey], /) -> tuple[Row, ...]:
        return tuple(self.rows[key] for key in keys)

    def add(self, row: Row) -> None:
        self.rows[row.key] = row


def random_groups(
    plane: DictPlane, step: int, *, groups: int = 4, siblings: int = 4, silent: bool = False
) -> list[TrainGroup]:
    """Groups with rows of many lengths, a masked span, a dropped sibling and a masked sample."""
    rng = np.random.default_rng([step, silent])
    result = []
    for number in range(groups):
        group = GroupId(1000 * step + number)
        prompt = rng.integers(2, VOCABULARY, 2 + number).astype(np.int32)
        keys = []
        for sibling in range(siblings):
            key = AttemptKey(group, SiblingIndex(sibling), Incarnation(1 + silent), 0)
            length = int(rng.integers(1, 14))
            mask = np.ones(length, dtype=np.bool_)
            mask[2:4] = sibling != 1  # tool output in the middle of one sibling
            plane.add(
                Row(
                    key=key,
                    prompt_ids=prompt,
                    response_ids=rng.integers(2, VOCABULARY, length).astype(np.int32),
                    logprobs=rng.uniform(-6, -2, length).astype(np.float32),
                    weight_versions=np.full(length, step - 1, dtype=np.int32),
                    loss_mask=mask,
                    reward=float(sibling % 2),
                    mask_sample=number == 1 and sibling == 2,
                )
            )
            keys.append(key)
        rewards = tuple(0.5 if silent else float((number + s) % 2) for s in range(siblings))
        keep = tuple(not (number == 2 and s == 3) for s in range(siblings))
        result.append(TrainGroup(group, tuple(keys), rewards, keep))
    return result


def payload_digest(payload: object) -> str:
    """sha256 over a state dict."""
    assert isinstance(payload, Mapping)
    state: Mapping[str, Any] = payload
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + state[name].numpy().tobytes())
    return digest.hexdigest()
