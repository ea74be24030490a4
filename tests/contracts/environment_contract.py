"""The contract of `Environment`, played with a scripted generation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pytest

from outlast.errors import InfrastructureFailure
from outlast.model.groups import Receipt
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex, TrainerVersion
from outlast.ports import (
    Environment,
    PromptItem,
    Rollout,
    RolloutRequest,
    SamplingParams,
    TokenChunk,
)
from outlast.rows import Int32, Row

Finish = Literal["stop", "length", "aborted"] | None


@dataclass
class ScriptedGenerate:
    """Streams `ids` one token a chunk; remembers what it was asked and how often it was closed."""

    ids: Sequence[int]
    finish: Finish = "stop"
    hang: bool = False
    prompts: list[list[int]] = field(default_factory=list)
    sampling: list[SamplingParams] = field(default_factory=list)
    closed: int = 0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(
        self, prompt_ids: Int32, sampling: SamplingParams
    ) -> AsyncIterator[TokenChunk]:
        self.prompts.append(prompt_ids.tolist())
        self.sampling.append(sampling)
        self.started.set()
        try:
            for place, token in enumerate(self.ids):
                last = place == len(self.ids) - 1
                yield TokenChunk(
                    np.array([token], np.int32),
                    np.array([-0.5 * (place + 1)], np.float32),
                    np.array([place // 2], np.int32),
                    self.finish if last and not self.hang else None,
                )
            if self.hang:
                await asyncio.Event().wait()
        finally:
            self.closed += 1
            self.ended.set()


def request(
    item: PromptItem, script: ScriptedGenerate, *, max_new_tokens: int = 16
) -> RolloutRequest:
    return RolloutRequest(
        item=item,
        sampling=SamplingParams(max_new_tokens=max_new_tokens, temperature=0.7),
        seed=1,
        generate=script,
    )


def run(environment: Environment, item: PromptItem, script: ScriptedGenerate) -> Rollout:
    return asyncio.run(environment.rollout(request(item, script)))


def check_environment(
    make: Callable[[], Environment], *, item: PromptItem, ids: Sequence[int]
) -> None:
    """Run the contract with `item` as prompt and `ids` as its scripted response."""
    environment = make()
    assert dict(environment.identity) == dict(make().identity), "identity depends on the instance"
    assert all(isinstance(v, str) for v in environment.identity.values())
    _check_rollout(environment, item, ids)
    _check_failures(environment, item, ids)
    _check_shape(environment)


def _check_rollout(environment: Environment, item: PromptItem, ids: Sequence[int]) -> None:
    finishes: tuple[tuple[Finish, bool], ...] = (("stop", False), ("length", True))
    for finish, truncated in finishes:
        script = ScriptedGenerate(ids, finish)
        rollout = run(environment, item, script)
        assert rollout.truncated is truncated
        assert script.closed == len(script.prompts) == 1
        assert script.sampling[0].temperature == 0.7 and script.sampling[0].max_new_tokens == 16
        assert rollout.prompt_ids.tolist() == script.prompts[0]
        assert rollout.response_ids.tolist() == list(ids)
        assert rollout.logprobs.tolist() == [-0.5 * (i + 1) for i in range(len(ids))]
        assert rollout.weight_versions.tolist() == [i // 2 for i in range(len(ids))]
        Row(  # the row checks dtypes and lengths itself
            key=AttemptKey(GroupId(0), SiblingIndex(0), Incarnation(1), 0),
            prompt_ids=rollout.prompt_ids,
            response_ids=rollout.response_ids,
            logprobs=rollout.logprobs,
            weight_versions=rollout.weight_versions,
            loss_mask=rollout.loss_mask,
            reward=rollout.reward,
            mask_sample=rollout.mask_sample,
        )
        again = run(environment, item, ScriptedGenerate(ids, finish))
        assert again.reward == rollout.reward and again.prompt_ids.tolist() == script.prompts[0]


def _check_failures(environment: Environment, item: PromptItem, ids: Sequence[int]) -> None:
    """An aborted or cut-off stream is nobody's data; cancellation passes and ends the stream."""
    for script in (ScriptedGenerate(ids, "aborted"), ScriptedGenerate(ids, None)):
        with pytest.raises(InfrastructureFailure):
            run(environment, item, script)
        assert script.closed == 1
    with pytest.raises(InfrastructureFailure):
        run(environment, item, ScriptedGenerate([]))

    async def cancelled(script: ScriptedGenerate) -> None:
        task = asyncio.ensure_future(environment.rollout(request(item, script)))
        await script.started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    script = ScriptedGenerate(ids, hang=True)
    asyncio.run(cancelled(script))
    assert script.closed == 1, "a cancelled rollout closes its stream"


def receipt(index: int, reward: float, *, mask_sample: bool = False) -> Receipt:
    return Receipt(
        key=AttemptKey(GroupId(0), SiblingIndex(index), Incarnation(1), 0),
        digest="",
        reward=reward,
        prompt_tokens=1,
        response_tokens=1,
        min_version=TrainerVersion(0),
        max_version=TrainerVersion(0),
        truncated=False,
        mask_sample=mask_sample,
    )


def _check_shape(environment: Environment) -> None:
    receipts = [receipt(0, 1.0), receipt(1, 0.0, mask_sample=True), receipt(2, 0.5)]
    rewards, keep = environment.shape(receipts)
    assert len(rewards) == len(keep) == 3, "one entry per sibling"
    assert not keep[1], "a masked sample must not be trained on"
    assert environment.shape(receipts) == (rewards, keep), "shaping is pure"
