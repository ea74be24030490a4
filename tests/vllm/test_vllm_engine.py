"""The vLLM engine against the trainer's model: versions, log-probabilities, prefixes, weights."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from outlast.adapters.engines.vllm_core import stream_seed
from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.adapters.torch_model import copy_state, load_model, named_state
from outlast.config.schema import GenerationSection
from outlast.errors import DataFailure, InvariantError
from outlast.model.ids import TrainerVersion, WeightVersion
from outlast.ports import GenerationRequest, SamplingParams, Weights
from tests.contracts.engine_contract import Response, respond
from tests.vllm.models import (
    LIFE,
    NEEDS_VLLM,
    initial_state,
    request,
    save_long_tiny,
    scaled,
)

pytestmark = NEEDS_VLLM


@dataclass
class Running:
    """One engine for all tests of this module, and the loop it lives on."""

    runner: asyncio.Runner
    engine: VllmEngine
    directory: Path
    state: Mapping[str, Tensor]
    version: int = -1

    async def update(self, payload: Mapping[str, Tensor] | None = None) -> int:
        """Push the next version; the initial weights unless others are given."""
        self.version += 1
        pair = WeightVersion(LIFE, TrainerVersion(self.version))
        state = self.state if payload is None else payload
        assert await self.engine.update_weights(Weights(version=pair, payload=state)) == pair
        return self.version

    def logprobs(
        self, asked: GenerationRequest, response: Response, state: Mapping[str, Tensor]
    ) -> np.ndarray:  # type: ignore[type-arg]
        """What the trainer's model says about the response, at the temperature of the request."""
        model = load_model(self.directory)
        copy_state(state, named_state(model))
        prefix = [] if asked.prefix is None else asked.prefix.ids.tolist()
        given = [*asked.prompt_ids.tolist(), *prefix]
        ids = torch.tensor([[*given, *response.ids]])
        with torch.inference_mode():
            logits = model(input_ids=ids).logits[0, len(given) - 1 : -1].float()
        values = torch.log_softmax(logits / (asked.sampling.temperature or 1.0), -1)
        return values.gather(-1, ids[0, len(given) :, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = save_long_tiny(tmp_path_factory.mktemp("vllm") / "model")
    engine = VllmEngine(model_path=str(directory), generation=GenerationSection(max_batch_size=8))
    with asyncio.Runner() as runner:
        runner.run(engine.start())
        try:
            yield Running(runner, engine, directory, initial_state(directory))
        finally:
            runner.run(engine.close())


def test_versions_are_those_of_the_weights_that_decoded_each_token(running: Running) -> None:
    """Odd versions have a final norm of zero: every token then has logprob -ln(vocabulary), and
    only then, so a token's own number says which weights decoded it."""

    async def work() -> None:
        state = running.state
        flat = {**state, "model.norm.weight": torch.zeros_like(state["model.norm.weight"])}
        first = await running.update()
        asked = [request(f"s{n}", tokens=400 + 50 * n, seed=n) for n in range(6)]
        streams = [asyncio.ensure_future(respond(running.engine, one)) for one in asked]
        late = []
        for number in range(6):
            await asyncio.sleep(0.15)
            version = await running.update(flat if number % 2 == 0 else None)
            late.append((version, asyncio.ensure_future(_short(running, f"late{number}"))))
        responses = [await stream for stream in streams]
        assert len({version for one in responses for version in one.versions}) >= 4
        for one in responses:
            assert one.versions == sorted(one.versions)
            assert one.versions[0] >= first
            _check_uniform(one, first)
        for version, task in late:  # sent after the acknowledgement: never older than it
            answer = await task
            assert min(answer.versions) >= version
            _check_uniform(answer, first)

    running.runner.run(work())


async def _short(running: Running, name: str) -> Response:
    return await respond(running.engine, request(name, tokens=3))


def _check_uniform(response: Response, first: int) -> None:
    uniform = np.isclose(response.logprobs, -np.log(18), atol=1e-5)
    odd = (np.asarray(response.versions) - first) % 2 == 1
    assert (uniform == odd).all()


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_logprobs_are_the_trainers(running: Running, temperature: float) -> None:
    async def work() -> None:
        await running.update()
        sampling = SamplingParams(max_new_tokens=60, temperature=temperature)
        sampled = request("own", sampling=sampling)
        others = [request(f"o{n}", tokens=60, seed=n) for n in range(3)]
        greedy = SamplingParams(max_new_tokens=60, temperature=0)
        mixed = [sampled, *others, request("greedy", sampling=greedy)]
        responses = await asyncio.gather(*(respond(running.engine, one) for one in mixed))
        for one, response in zip(mixed, responses, strict=True):
            expected = running.logprobs(one, response, running.state)
            np.testing.assert_allclose(response.logprobs, expected, atol=2e-3)

    running.runner.run(work())


def test_new_weights_serve_new_requests_from_the_first_token(running: Running) -> None:
    """A long prompt, so that whole blocks of it are in the prefix cache of the old weights."""

    async def work() -> None:
        await running.update()
        prompt = np.asarray([2 + n % 15 for n in range(600)], dtype=np.int32)
        long = replace(request("before", tokens=20), prompt_ids=prompt)
        before = await respond(running.engine, long)
        held = asyncio.ensure_future(respond(running.engine, request("held", tokens=1500)))
        await asyncio.sleep(0.1)  # a running request keeps vLLM from resetting its prefix cache
        changed = {name: value * 1.5 for name, value in running.state.items()}
        await running.update(changed)
        after = await respond(running.engine, replace(long, id="after"))
        for response, state in ((before, running.state), (after, changed)):
            expected = running.logprobs(long, response, state)
            np.testing.assert_allclose(response.logprobs, expected, atol=2e-3)
        assert not np.allclose(before.logprobs[:1], after.logprobs[:1], atol=1e-2)
        assert (await held).finish == "length"

    running.runner.run(work())


def test_more_prompt_tokens_than_one_step_takes(running: Running) -> None:
    """A seeded request whose prompt was split over two steps killed vLLM's worker on a CPU."""

    async def work() -> None:
        await running.update()
        prompts = [np.asarray([2 + (n * k) % 16 for k in range(700)], np.int32) for n in range(8)]
        asked = [
            replace(request(f"p{number}", tokens=5, seed=number), prompt_ids=prompt)
            for number, prompt in enumerate(prompts)
        ]
        responses = await asyncio.gather(*(respond(running.engine, one) for one in asked))
        for one, response in zip(asked, responses, strict=True):
            expected = running.logprobs(one, response, running.state)
            np.testing.assert_allclose(response.logprobs, expected, atol=2e-3)

    running.runner.run(work())


def test_a_prefix_is_continued_as_if_it_had_been_decoded(running: Running) -> None:
    async def work() -> None:
        await running.update()
        greedy = SamplingParams(max_new_tokens=40, temperature=0)
        asked = request("whole", sampling=greedy)
        whole = await respond(running.engine, asked)
        rest = replace(asked, id="rest", prefix=whole.prefix(17))
        continued = await respond(running.engine, rest)
        assert continued.ids == whole.ids[17:]
        np.testing.assert_allclose(continued.logprobs, whole.logprobs[17:], atol=2e-3)
        sampled = request("sampled", tokens=40)
        begun = await respond(running.engine, sampled)
        rest = replace(sampled, id="more", prefix=begun.prefix(20))
        continued = await respond(running.engine, rest)
        assert len(continued.ids) == 20
        assert continued.ids != begun.ids[:20]  # not the numbers of the first tokens again
        expected = running.logprobs(rest, continued, running.state)
        np.testing.assert_allclose(continued.logprobs, expected, atol=2e-3)

    running.runner.run(work())


def test_the_same_request_alone_gives_the_same_tokens(running: Running) -> None:
    async def work() -> None:
        await running.update()
        one = await respond(running.engine, request("a", tokens=50))
        two = await respond(running.engine, request("b", tokens=50))
        other = await respond(running.engine, request("c", tokens=50, seed=8))
        assert one.ids == two.ids != other.ids

    running.runner.run(work())


def test_weights_of_another_model_are_refused_and_change_nothing(running: Running) -> None:
    async def work() -> None:
        await running.update()
        served = running.engine.served
        before = await respond(running.engine, request("before", tokens=20))
        norm = running.state["model.norm.weight"]
        for wrong in (
            {**running.state, "model.norm.weight": norm[:-1]},
            {**running.state, "unknown": norm},
            {name: value for name, value in running.state.items() if "norm" not in name},
        ):
            with pytest.raises(InvariantError, match="belong to another model"):
                await running.engine.update_weights(scaled(wrong, 99))
        with pytest.raises(InvariantError):
            await running.engine.update_weights(Weights(version=served, payload=b"bytes"))  # type: ignore[arg-type]
        assert running.engine.served == served
        after = await respond(running.engine, request("after", tokens=20))
        assert after == before

    running.runner.run(work())


def test_the_length_of_the_model_ends_a_response(running: Running) -> None:
    async def work() -> None:
        await running.update()
        prompt = np.full(2045, 3, dtype=np.int32)
        asked = replace(request("long", tokens=50), prompt_ids=prompt)
        response = await respond(running.engine, asked)
        assert (len(response.ids), response.finish) == (3, "length")
        full = replace(asked, id="full", prefix=response.prefix(3))
        assert (await respond(running.engine, full)).ids == []
        with pytest.raises(DataFailure, match="2048"):
            await respond(running.engine, replace(asked, prompt_ids=np.full(2048, 3, np.int32)))
        with pytest.raises(DataFailure, match=r"within \[0, 18\)"):
            await respond(running.engine, replace(asked, prompt_ids=np.full(4, 18, np.int32)))

    running.runner.run(work())


def test_a_cancelled_update_is_finished_and_leaves_nothing_paused(running: Running) -> None:
    async def work() -> None:
        await running.update()
        update = asyncio.ensure_future(running.update())
        await asyncio.sleep(0.01)
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        await running.update()
        response = await respond(running.engine, request("alive", tokens=5))
        assert response.versions == [running.version] * 5

    running.runner.run(work())


def test_seeds_differ_with_every_prefix() -> None:
    seeds = {stream_seed(seed, prefix) for seed in range(20) for prefix in range(20)}
    assert len(seeds) == 400
    assert all(0 <= seed < 2**63 for seed in seeds)
