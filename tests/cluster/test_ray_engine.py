"""Engines in Ray actors: they pass the engine contract, and a pool of them outlives their death."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

from outlast.adapters.engines.pool import EnginePool
from outlast.adapters.engines.ray_engine import RayEngine
from outlast.adapters.engines.torch_engine import TorchEngine
from outlast.adapters.torch_model import load_model, named_state
from outlast.adapters.weight_transfer import make_transfer
from outlast.config.schema import GenerationSection, RaySection
from outlast.errors import InfrastructureFailure, RecipeError
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion
from outlast.ports import GenerationEngine, GenerationRequest, SamplingParams, Weights
from outlast.testing.processes import descendants
from tests.adapters.models import save_llama
from tests.contracts.engine_contract import EngineContract, EngineSubject, respond

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster"), pytest.mark.timeout(300)]

ONE = Incarnation(1)
GENERATION = GenerationSection(max_batch_size=16, health_timeout_s=60)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Random weights, and room for long responses."""
    return str(save_llama(tmp_path_factory.mktemp("models") / "llama"))


def make_engine(model: str) -> RayEngine:
    return RayEngine(
        engine="torch",
        model_path=model,
        generation=GENERATION,
        deterministic=True,
        device="cpu",
        ray=RaySection(),
    )


def state(model: str) -> dict[str, Any]:
    return named_state(load_model(Path(model)))


class TestRayEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _model(self, model: str) -> None:
        self.model = model

    def make(self) -> EngineSubject:
        initial = state(self.model)
        return EngineSubject(
            engine=make_engine(self.model),
            payload=lambda version: {name: t * (1 + 0.1 * version) for name, t in initial.items()},
            prompt=np.asarray([5, 9, 33, 2], dtype=np.int32),
        )


def engine_pids() -> list[int]:
    return [p.pid for p in descendants(os.getpid()) if p.command.startswith("ray::EngineActor")]


def request(number: int) -> GenerationRequest:
    return GenerationRequest(
        id=f"r{number}",
        incarnation=ONE,
        prompt_ids=np.asarray([5, 9, 33, 2], dtype=np.int32),
        sampling=SamplingParams(max_new_tokens=300),
        seed=number,
    )


async def loaded(engine: GenerationEngine, model: str) -> None:
    await engine.start()
    await engine.fence(ONE)
    pair = WeightVersion(ONE, TrainerVersion(0))
    assert await engine.update_weights(Weights(version=pair, payload=state(model))) == pair


@pytest.mark.parametrize("kind", ["file", "ray"])
def test_a_killed_engine_costs_no_token(kind: str, model: str) -> None:
    """kill -9 of one of two actors: every response is the one of an undisturbed engine."""

    async def scenario() -> None:
        alone = TorchEngine(model_path=model, generation=GENERATION, deterministic=True)
        await loaded(alone, model)
        expected = [await respond(alone, request(number)) for number in range(6)]
        await alone.close()
        told: list[str] = []
        pool = EnginePool(
            lambda _: make_engine(model),
            count=2,
            min_healthy=1,
            health_interval_s=0.5,
            health_timeout_s=60,
            start_timeout_s=120,
            transfer=make_transfer(kind),
            on_warning=told.append,
        )
        try:
            await loaded(pool, model)
            work = [asyncio.ensure_future(respond(pool, request(n))) for n in range(6)]
            await asyncio.sleep(0.1)
            os.kill(engine_pids()[0], signal.SIGKILL)
            assert await asyncio.gather(*work) == expected
            assert len(told) == 1 and "is lost" in told[0]
            until = time.monotonic() + 60
            while pool.healthy < 2:
                assert time.monotonic() < until, "the engine did not come back"
                await asyncio.sleep(0.1)
            assert await respond(pool, request(0)) == expected[0]
        finally:
            await pool.close()

    asyncio.run(scenario())


def test_a_killed_engine_fails_its_streams_within_seconds(model: str) -> None:
    async def scenario() -> None:
        engine = make_engine(model)
        try:
            await loaded(engine, model)
            work = asyncio.ensure_future(respond(engine, request(1)))
            await asyncio.sleep(0.05)
            began = time.monotonic()
            os.kill(engine_pids()[-1], signal.SIGKILL)
            with pytest.raises(InfrastructureFailure, match="engine actor"):
                await work
            assert time.monotonic() - began < 5
            with pytest.raises(InfrastructureFailure):
                await engine.ping()
        finally:
            await engine.close()
        await engine.close()

    asyncio.run(scenario())


def test_a_model_that_is_not_there_is_refused_by_name() -> None:
    async def scenario() -> None:
        engine = make_engine("/no/such/model")
        try:
            with pytest.raises(RecipeError, match="/no/such/model"):
                await engine.start()
        finally:
            await engine.close()

    asyncio.run(scenario())
