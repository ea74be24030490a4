"""A prompt source and a single-turn environment for simulations.

Prompt `index` is the text ``prompt index``; its reward is derived from the response tokens, so it
is as reproducible as they are. Passes the prompt and environment contracts.
May import: `ports`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from outlast.errors import DataFailure, InfrastructureFailure
from outlast.model.groups import Receipt
from outlast.ports import PromptItem, Rollout, RolloutRequest, TokenChunk


class FakePrompts:
    """`size` prompts; those in `unreadable` raise DataFailure."""

    def __init__(self, size: int, *, unreadable: frozenset[int] = frozenset()) -> None:
        self._size = size
        self.unreadable = unreadable

    @property
    def digest(self) -> str:
        return f"fake-prompts-{self._size}"

    def __len__(self) -> int:
        return self._size

    def item(self, index: int) -> PromptItem:
        if not 0 <= index < self._size:
            raise IndexError(f"prompt {index} of {self._size}")
        if index in self.unreadable:
            raise DataFailure(f"prompt {index} is unreadable")
        return PromptItem(text=f"prompt {index}", fields={"index": index})


class FakeEnvironment:
    """One turn; prompts in `poison` fail for good."""

    def __init__(self, *, poison: frozenset[int] = frozenset()) -> None:
        self.poison = poison

    @property
    def identity(self) -> Mapping[str, str]:
        return {"name": "fake", "version": "1"}

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        text = request.item.text or ""
        index = int(text.split()[-1])
        prompt_ids = np.array([1, 2, index], np.int32)
        chunks: list[TokenChunk] = []
        async for chunk in request.generate(prompt_ids, request.sampling):
            chunks.append(chunk)
        if not chunks or chunks[-1].finish in (None, "aborted"):
            raise InfrastructureFailure(f"the stream for {text!r} ended early")
        if index in self.poison:
            raise DataFailure(f"the reward of {text!r} cannot be computed")
        ids = np.concatenate([chunk.ids for chunk in chunks])
        return Rollout(
            prompt_ids=prompt_ids,
            response_ids=ids,
            logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
            weight_versions=np.concatenate([chunk.versions for chunk in chunks]),
            loss_mask=np.ones(len(ids), np.bool_),
            reward=float(int(ids.sum()) % 4) / 4,
            truncated=chunks[-1].finish == "length",
            mask_sample=False,
        )

    def shape(self, receipts: Sequence[Receipt], /) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        rewards = tuple(receipt.reward for receipt in receipts)
        return rewards, tuple(not receipt.mask_sample for receipt in receipts)
