"""Llama-family decoding over one batched KV cache: fused projections, grouped-query attention.

Covers `model_type: llama` without biases (SmolLM2, the tiny model, Llama 2 and 3). The numbers are
those of transformers' implementation up to rounding; tests compare both.
May import: torch, numpy, transformers (its rotary frequencies), `adapters.torch_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from outlast.adapters.torch_model import TRANSFORMERS, State, check_state
from outlast.rows import Int32

LENGTH_BLOCK = 64
"""Capacity of a slot grows in blocks, so that slots stay aligned and rarely move."""

_STATIC_ROPE = frozenset({"default", "linear", "llama3", "yarn"})


def covers(config: Any) -> bool:
    """Whether `LlamaDecoder` computes the model of this transformers config."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return (
        config.model_type == "llama"
        and config.hidden_act == "silu"
        and not config.attention_bias
        and not config.mlp_bias
        and rope.get("rope_type", "default") in _STATIC_ROPE
    )


@dataclass(slots=True)
class _Layer:
    """Weights of one block, [out, in]; qkv rows are queries, then keys, then values."""

    norm_1: Tensor
    qkv: Tensor
    out: Tensor
    norm_2: Tensor
    gate_up: Tensor
    down: Tensor
    cache: Tensor  # [slots, 2 * kv_heads, length, head_dim]: keys, then values


class LlamaDecoder:
    """See `Decoder`. Rows decode together; a mask hides what lies beyond each row's length."""

    def __init__(self, config: Any, *, dtype: torch.dtype, device: torch.device) -> None:
        self.vocabulary_size = int(config.vocab_size)
        self.max_length = int(config.max_position_embeddings)
        self._hidden = int(config.hidden_size)
        self._heads = int(config.num_attention_heads)
        self._kv = int(config.num_key_value_heads)
        self._dim = int(config.head_dim or self._hidden // self._heads)
        self._inner = int(config.intermediate_size)
        self._eps = float(config.rms_norm_eps)
        self._tied = bool(config.tie_word_embeddings)
        self._slots = self._length = 0
        self._new: dict[str, Any] = {"dtype": dtype, "device": device}
        self._embedding = torch.zeros(self.vocabulary_size, self._hidden, **self._new)
        self._head = self._embedding if self._tied else torch.zeros_like(self._embedding)
        self._norm = torch.ones(self._hidden, **self._new)
        self._layers = [self._layer() for _ in range(int(config.num_hidden_layers))]
        self._targets = self._named_targets()
        self._cos, self._sin = self._rotary(config)

    def _layer(self) -> _Layer:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, **self._new)

        return _Layer(
            norm_1=zeros(self._hidden),
            qkv=zeros((self._heads + 2 * self._kv) * self._dim, self._hidden),
            out=zeros(self._hidden, self._heads * self._dim),
            norm_2=zeros(self._hidden),
            gate_up=zeros(2 * self._inner, self._hidden),
            down=zeros(self._hidden, self._inner),
            cache=zeros(0, 2 * self._kv, 0, self._dim),
        )

    def _rotary(self, config: Any) -> tuple[Tensor, Tensor]:
        with TRANSFORMERS:
            from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

            rotary: Any = LlamaRotaryEmbedding(config)
        positions = torch.arange(self.max_length)[None]
        cos, sin = rotary(torch.zeros(1), positions)
        return cos[0].to(**self._new), sin[0].to(**self._new)

    def _named_targets(self) -> dict[str, Tensor]:
        """Hugging Face name -> the (part of a) fused tensor that holds it."""
        targets = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self._tied:
            targets["lm_head.weight"] = self._head
        queries, keys = self._heads * self._dim, self._kv * self._dim
        for number, layer in enumerate(self._layers):
            q, k, v = layer.qkv.split([queries, keys, keys])
            gate, up = layer.gate_up.split(self._inner)
            parts = {
                "input_layernorm": layer.norm_1,
                "self_attn.q_proj": q,
                "self_attn.k_proj": k,
                "self_attn.v_proj": v,
                "self_attn.o_proj": layer.out,
                "post_attention_layernorm": layer.norm_2,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down,
            }
            targets |= {f"model.layers.{number}.{n}.weight": t for n, t in parts.items()}
        return targets

    def load(self, state: State) -> None:
        check_state(state, {name: tuple(value.shape) for name, value in self._targets.items()})
        for name, target in self._targets.items():
            target.copy_(state[name])

    def reserve(self, slots: int, length: int) -> None:
        if slots <= self._slots and length <= self._length:
            return
        new_length = self._length
        if length > new_length:  # half as much again: copying stays cheap per token
            wanted = max(length, min(self._length * 3 // 2, self.max_length))
            new_length = -(-wanted // LENGTH_BLOCK) * LENGTH_BLOCK
        new_slots = self._slots if slots <= self._slots else max(slots, 2 * self._slots)
        for layer in self._layers:
            old = layer.cache
            layer.cache = torch.zeros(new_slots, 2 * self._kv, new_length, self._dim, **self._new)
            layer.cache[: old.shape[0], :, : old.shape[2]] = old
        self._slots, self._length = new_slots, new_length

    def copy_slot(self, source: int, target: int, *, length: int) -> None:
        for layer in self._layers:
            layer.cache[target, :, :length] = layer.cache[source, :, :length]

    def drop_last(self, slots: int) -> None:
        """Nothing to do: what a slot held is overwritten before it is read again."""

    def prefill(self, first: int, sequences: Sequence[Int32]) -> Tensor:
        lengths = [len(sequence) for sequence in sequences]
        count, width = len(sequences), max(lengths)
        ids = np.zeros((count, width), dtype=np.int64)  # padding on the right: causality hides it
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = sequence
        x = self._embedding[self._tensor(ids)]
        rotary = self._cos[:width, None], self._sin[:width, None]
        group = self._heads // self._kv
        for layer in self._layers:
            q, kv = self._project(layer, x, rotary=rotary)
            layer.cache[first : first + count, :, :width] = kv.transpose(1, 2)
            k, v = (part.transpose(1, 2) for part in kv.split(self._kv, dim=2))
            attended = F.scaled_dot_product_attention(
                q.transpose(1, 2),
                k.repeat_interleave(group, 1),
                v.repeat_interleave(group, 1),
                is_causal=True,
            )
            attended = attended.transpose(1, 2).reshape(count, width, -1)
            x = self._finish(layer, x, attended=attended)
        last = self._tensor(np.asarray(lengths, dtype=np.int64) - 1)
        return self._logits(x[torch.arange(count, device=x.device), last])

    def decode(
        self, first: int, *, tokens: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> Tensor:
        count, width = len(tokens), int(lengths.max()) + 1
        places = self._tensor(lengths)
        x = self._embedding[self._tensor(tokens)][:, None]
        rotary = self._cos[places][:, None, None], self._sin[places][:, None, None]
        rows = torch.arange(first, first + count, device=x.device)
        mask = None
        if count > 1:
            visible = torch.arange(width, device=x.device)[None] <= places[:, None]
            mask = torch.zeros(count, width, **self._new).masked_fill(~visible, float("-inf"))
            mask = mask[:, None, None]
        for layer in self._layers:
            q, kv = self._project(layer, x, rotary=rotary)
            layer.cache[rows, :, places] = kv[:, 0]
            cached = layer.cache[first : first + count, :, :width]
            attended = F.scaled_dot_product_attention(
                # All queries that share a key head attend as if they were positions of one head.
                q.view(count, self._kv, -1, self._dim),
                cached[:, : self._kv],
                cached[:, self._kv :],
                attn_mask=mask,
            )
            x = self._finish(layer, x, attended=attended.reshape(count, 1, -1))
        return self._logits(x[:, 0])

    def _project(
        self, layer: _Layer, x: Tensor, *, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Queries [n, t, H, D] and keys-then-values [n, t, 2 KV, D], rotated."""
        n, t, _ = x.shape
        cos, sin = rotary
        qkv = F.linear(self._normed(x, layer.norm_1), layer.qkv).view(n, t, -1, self._dim)
        rotated = qkv[:, :, : self._heads + self._kv]
        left, right = rotated.chunk(2, dim=-1)
        rotated.copy_(rotated * cos + torch.cat((-right, left), dim=-1) * sin)
        return qkv[:, :, : self._heads], qkv[:, :, self._heads :]

    def _finish(self, layer: _Layer, x: Tensor, *, attended: Tensor) -> Tensor:
        x = x + F.linear(attended, layer.out)
        gate, up = F.linear(self._normed(x, layer.norm_2), layer.gate_up).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self._hidden,), weight, self._eps)

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self._normed(x, self._norm), self._head).float()

    def _tensor(self, values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._new["device"])
