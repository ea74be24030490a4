"""The embedded engine beyond its contract: its numbers, its random streams, and how it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outlast.adapters.engines.torch_engine import TorchEngine
from outlast.adapters.torch_model import load_model, named_state
from outlast.config.schema import GenerationSection
from outlast.errors import DataFailure, InfrastructureFailure, InvariantError
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion
from outlast.ports import GenerationRequest, SamplingParams, Weights
from tests.adapters.models import VOCABULARY
from tests.contracts.engine_contract import Response, respond

ONE = Incarnation(1)
VERSION = WeightVersion(ONE, TrainerVersion(0))
Test = Callable[[TorchEngine], Coroutine[Any, Any, None]]


def request(
    name: str = "r", *, seed: int = 0, prompt: tuple[int, ...] = (5, 9, 33, 2), **sampling: Any
) -> GenerationRequest:
    settings: dict[str, Any] = {"max_new_tokens": 24, **sampling}
    return GenerationRequest(
        id=name,
        incarnation=ONE,
        prompt_ids=np.asarray(prompt, dtype=np.int32),
        sampling=SamplingParams(**settings),
        seed=seed,
    )


def with_engine(directory: Path, test: Test, **options: Any) -> None:
    """Run `test` with a started engine that serves the model of `directory`."""

    async def body() -> None:
        generation = GenerationSection(max_batch_size=options.pop("max_batch_size", 16))
        engine = TorchEngine(model_path=str(directory), generation=generation, **options)
        await engine.start()
        try:
            state = named_state(load_model(directory))
            await engine.update_weights(Weights(version=VERSION, payload=state))
            await test(engine)
        finally:
            await engine.close()

    asyncio.run(body())


async def respond_all(engine: TorchEngine, requests: list[GenerationRequest]) -> list[Response]:
    return await asyncio.gather(*(respond(engine, r) for r in requests))


def reference_logits(directory: Path, item: GenerationRequest, response: Response) -> torch.Tensor:
    """Logits [T, V] of transformers' own forward, one per response token."""
    ids = [*item.prompt_ids.tolist(), *response.ids]
    with torch.no_grad():
        logits: torch.Tensor = load_model(directory)(torch.tensor([ids])).logits[0].float()
    return logits[len(item.prompt_ids) - 1 : -1]


KINDS = [("llama", False), ("untied", False), ("llama", True), ("gpt2", False)]


@pytest.mark.parametrize(("model", "generic"), KINDS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_numbers_are_those_of_transformers(
    models: dict[str, Path], model: str, generic: bool, deterministic: bool
) -> None:
    directory = models[model]
    requests = [
        request(f"r{n}", seed=n, prompt=tuple(range(2, 4 + 3 * (n % 5))), temperature=temperature)
        for n, temperature in enumerate([0.0, 1.0, 0.7, 1.3, 0.0, 1.0, 1.0, 1.0])
    ]

    async def test(engine: TorchEngine) -> None:
        for item, response in zip(requests, await respond_all(engine, requests), strict=True):
            logits = reference_logits(directory, item, response)
            temperature = item.sampling.temperature or 1.0
            logprobs = torch.log_softmax(logits / temperature, -1)
            expected = logprobs[torch.arange(24), torch.tensor(response.ids)]
            torch.testing.assert_close(torch.tensor(response.logprobs), expected, atol=1e-4, rtol=0)
            if item.sampling.temperature == 0:
                assert response.ids == logits.argmax(-1).tolist()

    with_engine(directory, test, generic=generic, deterministic=deterministic)


def test_more_requests_than_slots_with_shared_prompts(models: dict[str, Path]) -> None:
    """Joining, leaving and moving between slots must not mix up anybody's cache."""
    requests = [
        request(f"r{n}", seed=n, prompt=(7, 8 + n % 3, 5)[: 2 + n % 2], max_new_tokens=1 + n % 13)
        for n in range(60)
    ]

    async def test(engine: TorchEngine) -> None:
        for item, response in zip(requests, await respond_all(engine, requests), strict=True):
            logits = reference_logits(models["llama"], item, response)
            expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(response.ids)[:, None])
            torch.testing.assert_close(
                torch.tensor(response.logprobs), expected[:, 0], atol=1e-4, rtol=0
            )

    with_engine(models["llama"], test, max_batch_size=7)


def test_deterministic_tokens_and_logprobs_do_not_depend_on_company(
    models: dict[str, Path],
) -> None:
    item = request("same", seed=11)

    async def test(engine: TorchEngine) -> None:
        alone = await respond(engine, item)
        for size in (2, 5, 12):
            others = [
                request(f"o{n}", seed=n, prompt=tuple(range(2, 3 + n)), max_new_tokens=3 * n + 1)
                for n in range(1, size)
            ]
            together = await respond_all(engine, [*others, item])
            assert together[-1] == alone  # logprobs compared as numbers: bit for bit

    with_engine(models["llama"], test, deterministic=True)


def test_deterministic_prefix_gives_the_same_bits(models: dict[str, Path]) -> None:
    item = request("cut", seed=3)

    async def test(engine: TorchEngine) -> None:
        whole = await respond(engine, item)
        for kept in (1, 9, 23):
            rest = await respond(engine, replace(item, prefix=whole.prefix(kept)))
            assert rest.ids == whole.ids[kept:]
            assert rest.logprobs == whole.logprobs[kept:]

    with_engine(models["llama"], test, deterministic=True)


def test_caches_survive_an_update_in_flight(models: dict[str, Path]) -> None:
    """Equal weights under a new version: the tokens go on as if nothing had happened."""
    item = request("long", seed=5, max_new_tokens=600)

    async def test(engine: TorchEngine) -> None:
        undisturbed = await respond(engine, item)
        state = named_state(load_model(models["llama"]))
        pair = WeightVersion(ONE, TrainerVersion(1))
        ids: list[int] = []
        versions: list[int] = []
        async for chunk in engine.generate(item):
            if not ids:
                await engine.update_weights(Weights(version=pair, payload=state))
            ids += chunk.ids.tolist()
            versions += chunk.versions.tolist()
        assert ids == undisturbed.ids
        assert set(versions) == {0, 1}

    with_engine(models["llama"], test, deterministic=True)


def test_foreign_weights_are_refused_and_change_nothing(models: dict[str, Path]) -> None:
    item = request(seed=1)

    async def test(engine: TorchEngine) -> None:
        before = await respond(engine, item)
        state = named_state(load_model(models["gpt2"]))
        pair = WeightVersion(ONE, TrainerVersion(9))
        with pytest.raises(InvariantError, match="another model"):
            await engine.update_weights(Weights(version=pair, payload=state))
        with pytest.raises(InvariantError, match="payload"):
            await engine.update_weights(Weights(version=pair, payload=b"bytes"))
        assert engine.served == VERSION
        assert await respond(engine, item) == before

    with_engine(models["llama"], test, deterministic=True)


def test_bad_prompts_are_data_failures(models: dict[str, Path]) -> None:
    async def test(engine: TorchEngine) -> None:
        for prompt in [(), (VOCABULARY,), (-1,), (3,) * 1024]:
            with pytest.raises(DataFailure):
                await respond(engine, request(prompt=prompt))
        near_the_end = await respond(engine, request(prompt=(3,) * 1020))
        assert (len(near_the_end.ids), near_the_end.finish) == (4, "length")

    with_engine(models["gpt2"], test)


def test_a_dying_thread_fails_everybody_and_hangs_nobody(models: dict[str, Path]) -> None:
    async def test(engine: TorchEngine) -> None:
        def explode(*_: object, **__: object) -> torch.Tensor:
            raise RuntimeError("out of luck")

        streams = [engine.generate(request(f"r{n}", max_new_tokens=1000)) for n in range(3)]
        for stream in streams:
            await anext(stream)
        engine._scheduler()._decoder.decode = explode  # type: ignore[method-assign]
        for stream in streams:
            with pytest.raises(InfrastructureFailure, match="out of luck"):
                async for _ in stream:
                    pass
        with pytest.raises(InfrastructureFailure, match="out of luck"):
            await respond(engine, request("late"))
        with pytest.raises(InfrastructureFailure, match="out of luck"):
            await engine.fence(ONE)

    with_engine(models["llama"], test)


def test_builtin_tiny_answers_its_own_task() -> None:
    engine = TorchEngine(model_path="builtin:tiny", generation=GenerationSection())

    async def test(engine: TorchEngine) -> None:
        item = request(prompt=(7, 14, 9, 14, 6, 14, 11, 15), stop_token_ids=(1,), temperature=0.0)
        response = await respond(engine, replace(item, seed=1))
        assert response.finish == "stop"
        assert response.ids[-3] == 17  # the tiny vocabulary's ">", before one digit and <eos>

    with_engine(engine.directory, test)
