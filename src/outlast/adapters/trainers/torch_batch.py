"""From groups and rows to padded micro-batches, and from a micro-batch to logprobs.

May import: torch, numpy, `algorithms`, `ports`, `rows`.
"""

from __future__ import annotations

import inspect
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outlast.algorithms.advantages import Estimator, group_advantages
from outlast.errors import InvariantError
from outlast.model.ids import AttemptKey
from outlast.ports import TrainGroup
from outlast.rows import Bool, Row

SHARED_TOKENS_MIN = 256
"""A prompt is run once for its siblings when that saves at least so many tokens: below, the second
forward pass costs more than it saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One sibling with its advantage; `valid` bool [T] marks the tokens that enter the loss."""

    row: Row
    advantage: float
    valid: Bool

    @property
    def length(self) -> int:
        """Prompt and response tokens together."""
        return len(self.row.prompt_ids) + len(self.row.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """B padded sequences of width W; the last K positions of the prefix predict all responses.

    Column k of the [B, K] tensors belongs to the token at position `first` + 1 + k.
    """

    ids: Tensor  # int64 [B, W], padded on the right with 0
    first: int  # the earliest position whose logits are needed
    shared: bool  # every row starts with the same prompt, long enough to be run only once
    targets: Tensor  # int64 [B, K]
    valid: Tensor  # bool [B, K]
    behaviour: Tensor  # float32 [B, K]
    advantages: Tensor  # float32 [B, 1]


Judged = tuple[TrainGroup, list[float]]
"""A group, and the advantage of each of its siblings."""


def with_advantages(groups: Sequence[TrainGroup], *, estimator: Estimator) -> list[Judged]:
    """Advantages come from the record (rewards and keep flags) alone: no row is needed for them."""
    judged = []
    for group in groups:
        rewards = torch.tensor([group.rewards], dtype=torch.float64)
        keep = torch.tensor([group.keep])
        judged.append((group, group_advantages(rewards, keep, estimator=estimator)[0].tolist()))
    return judged


def samples_of(
    judged: Sequence[Judged],
    rows: Mapping[AttemptKey, Row],
    *,
    only: Container[AttemptKey] | None = None,
) -> list[Sample]:
    """All siblings (or `only` these) in dispatch order. A sibling that is not kept, or masked, has
    no valid token.

    `mask_sample` only silences the sibling's own tokens, so masking an over-long response does not
    move its group's baseline.
    """
    samples = []
    for group, advantages in judged:
        for key, keep, advantage in zip(group.keys, group.keep, advantages, strict=True):
            if only is not None and key not in only:
                continue
            row = rows[key]
            if not len(row.prompt_ids):
                raise InvariantError(f"row {key}: no prompt tokens, its first token has no logits")
            trained = keep and not row.mask_sample
            valid = row.loss_mask if trained else np.zeros_like(row.loss_mask)
            samples.append(Sample(row, advantage, valid))
    return samples


def collate(
    samples: Sequence[Sample], device: torch.device, *, share_prompts: bool = True
) -> MicroBatch:
    """Pad to one width. Right padding needs no attention mask in a causal model."""
    width = max(sample.length for sample in samples)
    first = min(len(sample.row.prompt_ids) for sample in samples) - 1
    shape = (len(samples), width)
    ids, valid = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.bool_)
    behaviour = np.zeros(shape, dtype=np.float32)
    for line, sample in enumerate(samples):
        prompt, end = len(sample.row.prompt_ids), sample.length
        ids[line, :prompt] = sample.row.prompt_ids
        ids[line, prompt:end] = sample.row.response_ids
        valid[line, prompt:end] = sample.valid
        behaviour[line, prompt:end] = sample.row.logprobs
    tokens = torch.from_numpy(ids).to(device)
    advantages = torch.tensor([[s.advantage] for s in samples], dtype=torch.float32)
    prompts = {sample.row.prompt_ids.tobytes() for sample in samples}
    return MicroBatch(
        ids=tokens,
        first=first,
        shared=share_prompts and len(prompts) == 1 and prompt_saving(samples) >= SHARED_TOKENS_MIN,
        targets=tokens[:, first + 1 :],
        valid=torch.from_numpy(valid[:, first + 1 :]).to(device),
        behaviour=torch.from_numpy(behaviour[:, first + 1 :]).to(device),
        advantages=advantages.to(device),
    )


def empty_batch(device: torch.device) -> MicroBatch:
    """A micro-batch without valid tokens: its gradients are zero, its collectives are not left out.

    It is two tokens wide because a causal model predicts nothing from the last.
    """
    ids = torch.zeros((1, 2), dtype=torch.int64, device=device)
    return MicroBatch(
        ids=ids,
        first=0,
        shared=False,
        targets=ids[:, 1:],
        valid=torch.zeros((1, 1), dtype=torch.bool, device=device),
        behaviour=torch.zeros((1, 1), device=device),
        advantages=torch.zeros((1, 1), device=device),
    )


def prompt_saving(samples: Sequence[Sample]) -> int:
    """Prompt tokens that need not be run again when `samples` of one prompt share it."""
    return (len(samples) - 1) * len(samples[0].row.prompt_ids)


def micro_batches(
    samples: Sequence[Sample], *, size: int, ordered: bool, share_prompts: bool = True
) -> list[list[Sample]]:
    """Partition a chunk. Siblings stay together where their prompt is worth sharing; the others
    are sorted by length, so that little is padded (`ordered`: left in dispatch order)."""
    by_prompt: dict[bytes, list[Sample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.row.prompt_ids.tobytes(), []).append(sample)
    sharing = [
        siblings
        for siblings in by_prompt.values()
        if share_prompts and _worth_sharing(siblings, size)
    ]
    together = {id(sample) for siblings in sharing for sample in siblings}
    rest = [sample for sample in samples if id(sample) not in together]
    if not ordered:
        rest.sort(key=lambda sample: sample.length)
    parts = [*sharing, rest]
    return [part[at : at + size] for part in parts for at in range(0, len(part), size)]


def _worth_sharing(siblings: Sequence[Sample], size: int) -> bool:
    return prompt_saving(siblings[:size]) >= SHARED_TOKENS_MIN


def keeps_logits(model: torch.nn.Module) -> bool:
    """Whether the model can compute logits for the last positions only."""
    return "logits_to_keep" in inspect.signature(model.forward).parameters


def token_logprobs(
    model: torch.nn.Module, batch: MicroBatch, *, temperature: float, sliced: bool
) -> Tensor:
    """Log-probabilities float32 [N] of the N valid tokens of a micro-batch, in row-major order.

    log_softmax(logits / temperature) over the whole vocabulary, with temperature 1 for greedy: the
    quantity the engine records (`torch_sampling.sample`). The softmax runs on valid tokens only.
    """
    logits = (_shared_logits if batch.shared else _plain_logits)(model, batch, sliced=sliced)
    chosen = logits[batch.valid].float() / (temperature or 1.0)
    targets = batch.targets[batch.valid][:, None]
    picked: Tensor = chosen.gather(-1, targets)[:, 0] - chosen.logsumexp(-1)
    return picked


def _plain_logits(model: torch.nn.Module, batch: MicroBatch, *, sliced: bool) -> Tensor:
    """Logits [B, K, V] that predict the targets."""
    width = batch.ids.shape[1]
    # The last position predicts nothing: K + 1 logits are computed and K are used.
    extra: dict[str, Any] = {"logits_to_keep": width - batch.first} if sliced else {}
    logits: Tensor = model(input_ids=batch.ids, use_cache=False, **extra).logits
    return logits[:, -(width - batch.first) : -1]


def _shared_logits(model: torch.nn.Module, batch: MicroBatch, *, sliced: bool) -> Tensor:
    """The same logits with the common prompt run once; gradients flow through its keys and values.

    Its last position predicts the first response token of every row.
    """
    length = batch.first + 1
    extra: dict[str, Any] = {"logits_to_keep": 1} if sliced else {}
    prompt = model(input_ids=batch.ids[:1, :length], use_cache=True, **extra)
    name = _cache_name(model)
    cache = getattr(prompt, name)
    rows = len(batch.ids)
    cache.batch_repeat_interleave(rows)
    responses = batch.ids[:, length:-1]
    first: Tensor = prompt.logits[:, -1:].expand(rows, -1, -1)
    if not responses.shape[1]:
        return first
    rest = model(input_ids=responses, use_cache=True, **{name: cache}).logits
    return torch.cat([first, rest], dim=1)


def _cache_name(model: torch.nn.Module) -> str:
    """Argument and output field that hold keys and values; transformers renamed them."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
