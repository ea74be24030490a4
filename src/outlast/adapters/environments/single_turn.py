"""One prompt, one generation, one reward.

The prompt text goes through `environment.template`, or its messages through the tokenizer's chat
template; the response is decoded without special tokens and scored by the named reward function.
Every sampled token is trained on. May import: `rewards`, `reward_calls`, `ports`, `config`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from outlast.adapters.environments.reward_calls import RewardCaller
from outlast.adapters.environments.rewards import Reward, load_reward
from outlast.config.schema import EnvironmentSection
from outlast.errors import DataFailure, InfrastructureFailure, RecipeError
from outlast.model.groups import Receipt
from outlast.ports import PromptItem, Rollout, RolloutRequest, TokenChunk
from outlast.rows import Int32

VERSION = "1"
"""Grows whenever the same prompt and response would give another rollout."""


class Tokenizer(Protocol):
    """What is used of a `transformers` tokenizer."""

    eos_token_id: int | None
    chat_template: Any

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        return_dict: bool,
    ) -> Any: ...


class SingleTurnEnvironment:
    """Port `Environment`. Stateless but for a limit on concurrent reward threads."""

    def __init__(self, section: EnvironmentSection, tokenizer: Any, *, reward: Reward) -> None:
        """`tokenizer` satisfies `Tokenizer`. Raises RecipeError for an unusable template."""
        self._section = section
        self._tokenizer: Tokenizer = tokenizer
        self._reward = RewardCaller(reward, timeout_s=section.reward_timeout_s)
        if section.chat and not self._tokenizer.chat_template:
            raise RecipeError(
                "environment.chat is true, but the tokenizer has no chat template; "
                "set environment.chat: false and write environment.template"
            )
        if not section.chat and "{prompt}" not in section.template:
            raise RecipeError(
                f"environment.template is {section.template!r}; it must contain {{prompt}}"
            )
        if not section.chat and section.system_prompt is not None:
            raise RecipeError("environment.system_prompt needs environment.chat: true")

    @property
    def identity(self) -> Mapping[str, str]:
        section = self._section
        how = section.template if not section.chat else f"{self._tokenizer.chat_template}"
        return {
            "environment": "single_turn",
            "version": VERSION,
            "chat": str(section.chat).lower(),
            "system_prompt": section.system_prompt or "",
            "template": hashlib.sha256(how.encode()).hexdigest(),
            "reward": self._reward.reward.name,
            "reward_digest": self._reward.reward.digest,
        }

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        prompt_ids = self._prompt_ids(request.item)
        sampling = request.sampling
        if not sampling.stop_token_ids and self._tokenizer.eos_token_id is not None:
            sampling = replace(sampling, stop_token_ids=(self._tokenizer.eos_token_id,))
        chunks = await _collect(request.generate(prompt_ids, sampling))
        response_ids = np.concatenate([chunk.ids for chunk in chunks]).astype(np.int32, copy=False)
        response = self._tokenizer.decode(response_ids.tolist(), skip_special_tokens=True)
        return Rollout(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            logprobs=np.concatenate([chunk.logprobs for chunk in chunks]),
            weight_versions=np.concatenate([chunk.versions for chunk in chunks]),
            loss_mask=np.ones(len(response_ids), dtype=np.bool_),
            reward=await self._reward(response, request.item),
            truncated=chunks[-1].finish == "length",
        )

    def shape(self, receipts: Sequence[Receipt], /) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        """Raw rewards as they are; every sibling is kept unless its sample is masked."""
        rewards = tuple(receipt.reward for receipt in receipts)
        return rewards, tuple(not receipt.mask_sample for receipt in receipts)

    def _prompt_ids(self, item: PromptItem) -> Int32:
        section = self._section
        if section.chat:
            ids = self._chat_ids(item)
        elif item.text is None:
            raise DataFailure(
                "the prompt is a list of chat messages, but environment.chat is false; set it to "
                "true, or name a text column in dataset.prompt_field"
            )
        else:
            ids = self._tokenizer.encode(section.template.replace("{prompt}", item.text))
        if not len(ids):
            raise DataFailure(f"the prompt {item.text!r} has no tokens")
        return np.asarray(ids, dtype=np.int32)

    def _chat_ids(self, item: PromptItem) -> Any:
        messages = [dict(message) for message in item.messages]
        if not messages:
            messages = [{"role": "user", "content": item.text or ""}]
        if self._section.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self._section.system_prompt})
        try:
            return self._tokenizer.apply_chat_template(
                messages, tokenize=True, add_generation_prompt=True, return_dict=False
            )
        except Exception as error:  # boundary: a template is code that comes with the model
            raise DataFailure(
                f"the tokenizer's chat template refuses the messages {messages}: "
                f"{type(error).__name__}: {error}"
            ) from error


async def _collect(stream: Any) -> list[TokenChunk]:
    """All chunks of one generation; the stream is closed (which aborts it) if we are cancelled."""
    chunks: list[TokenChunk] = []
    try:
        async for chunk in stream:
            chunks.append(chunk)
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
    finish = chunks[-1].finish if chunks else None
    if finish not in ("stop", "length"):
        raise InfrastructureFailure(
            f"generation ended with finish {finish} after {sum(len(c.ids) for c in chunks)} "
            "tokens; stop or length is required. It is tried again"
        )
    if not any(len(chunk.ids) for chunk in chunks):
        raise InfrastructureFailure("generation finished without a token. It is tried again")
    return chunks


def build_environment(section: EnvironmentSection, tokenizer: Any) -> SingleTurnEnvironment:
    """The environment that a recipe names. Raises RecipeError."""
    return SingleTurnEnvironment(section, tokenizer, reward=load_reward(section.reward))
