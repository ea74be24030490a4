"""The pool of engines in virtual time: it passes the engine contract, and its members may die."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import numpy as np
import pytest

from outlast.adapters.engines.pool import EnginePool
from outlast.adapters.weight_transfer import make_transfer
from outlast.errors import InfrastructureFailure, InvariantError, RecipeError, StallAbort
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion
from outlast.ports import GenerationRequest, SamplingParams, TokenChunk, Weights
from outlast.testing.fake_engine import FakeEngine
from tests.contracts.engine_contract import EngineContract, EngineSubject, respond
from tests.sim.test_fakes import drive

ONE = Incarnation(1)


class Mortal(FakeEngine):
    """A fake that can die or hang, and knows whether it lives."""

    def __init__(self, *, pings: bool = True) -> None:
        super().__init__(seed=3)
        self.dead = self.hung = self.fails_updates = self.refused = False
        self.updates: list[int] = []
        self.loading_s = 0.5
        if not pings:
            self.ping = None  # type: ignore[assignment, method-assign]

    async def ping(self) -> None:
        if self.hung:
            await asyncio.sleep(1e6)
        self._expect_life()

    def _expect_life(self) -> None:
        if self.dead:
            raise InfrastructureFailure("killed")

    async def start(self) -> None:
        if self.refused:
            raise RecipeError("the model's disk is not mounted")
        self._expect_life()
        await asyncio.sleep(self.loading_s)
        await super().start()

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        if self.fails_updates:
            raise InfrastructureFailure("out of memory")
        if self.hung:
            await asyncio.sleep(1e6)
        self._expect_life()
        self.updates.append(int(weights.version.version))
        return await super().update_weights(weights)

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        async for chunk in super().generate(request):
            if self.hung:
                await asyncio.sleep(1e6)
            self._expect_life()
            yield chunk


class Crew:
    """A pool and every engine it was ever made of."""

    def __init__(self, count: int, *, min_healthy: int = 1, pings: bool = True) -> None:
        self.made: list[Mortal] = []
        self.stillborn = self.refused = False
        self.warnings: list[str] = []
        self._pings = pings
        self.pool = EnginePool(
            self._make,
            count=count,
            min_healthy=min_healthy,
            health_interval_s=1.0,
            health_timeout_s=20.0,
            start_timeout_s=60.0,
            transfer=make_transfer("in_process"),
            on_warning=self.warnings.append,
        )

    def _make(self, number: int) -> Mortal:
        engine = Mortal(pings=self._pings)
        engine.dead, engine.refused = self.stillborn, self.refused
        self.made.append(engine)
        return engine

    async def begin(self, version: int = 0) -> None:
        await self.pool.start()
        await self.pool.fence(ONE)
        await self.push(version)

    async def push(self, version: int) -> WeightVersion:
        pair = WeightVersion(ONE, TrainerVersion(version))
        return await self.pool.update_weights(Weights(version=pair, payload="w"))


def request(number: int, *, tokens: int = 64) -> GenerationRequest:
    return GenerationRequest(
        id=f"r{number}",
        incarnation=ONE,
        prompt_ids=np.array([1, 2, 3], np.int32),
        sampling=SamplingParams(max_new_tokens=tokens),
        seed=number,
    )


class TestEnginePool(EngineContract):
    def make(self) -> EngineSubject:
        prompt = np.array([1, 2, 3], np.int32)
        return EngineSubject(engine=Crew(2).pool, payload=lambda version: "w", prompt=prompt)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        drive(work)


async def undisturbed(count: int) -> list[Any]:
    engine = Mortal()
    await engine.start()
    pair = WeightVersion(ONE, TrainerVersion(0))
    await engine.update_weights(Weights(version=pair, payload="w"))
    return [await respond(engine, request(number)) for number in range(count)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("how", ["dead", "hung"])
def test_requests_outlive_their_engine_token_by_token(seed: int, how: str) -> None:
    """S13: whatever dies or hangs, and when, every stream is the one of an undisturbed engine."""

    async def scenario() -> None:
        rng, crew = random.Random(f"{seed}/{how}"), Crew(3)
        await crew.begin()
        expected = await undisturbed(12)
        work = [asyncio.ensure_future(respond(crew.pool, request(n))) for n in range(12)]
        for _ in range(4):
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            setattr(rng.choice(crew.made), how, True)
        found = await asyncio.gather(*work)
        assert found == expected
        assert crew.warnings and all("lost" in w or "come back" in w for w in crew.warnings)
        await crew.pool.close()

    drive(scenario())


def test_requests_go_to_the_member_with_the_fewest() -> None:
    async def scenario() -> None:
        crew = Crew(3)
        await crew.begin()
        work = [asyncio.ensure_future(respond(crew.pool, request(n))) for n in range(9)]
        await asyncio.sleep(0.01)
        assert [len(engine._running) for engine in crew.made] == [3, 3, 3]
        await asyncio.gather(*work)
        await crew.pool.close()

    drive(scenario())


def test_a_member_serves_only_what_was_acknowledged_last() -> None:
    """S8: one that misses an update is taken out, and comes back with the newest weights."""

    async def scenario() -> None:
        crew = Crew(2)
        await crew.begin(0)
        crew.made[0].fails_updates = True
        assert (await crew.push(1)).version == 1
        assert crew.pool.served == WeightVersion(ONE, TrainerVersion(1))
        assert crew.pool.healthy == 1
        await asyncio.sleep(5)
        assert crew.pool.healthy == 2
        assert crew.made[2].updates == [1]  # made again, and never at version 0
        assert crew.made[2]._fence == ONE
        await crew.push(2)
        assert [engine.updates for engine in crew.made] == [[0], [0, 1, 2], [1, 2]]
        await crew.pool.close()

    drive(scenario())


def test_an_update_does_not_wait_for_a_member_that_hangs() -> None:
    async def scenario() -> None:
        crew = Crew(2)
        await crew.begin()
        crew.made[1].hung = True
        began = asyncio.get_running_loop().time()
        await crew.push(1)
        assert asyncio.get_running_loop().time() - began <= 21
        await crew.pool.close()

    drive(scenario())


def test_too_few_engines_for_too_long_end_the_run_with_the_numbers() -> None:
    async def scenario() -> None:
        crew = Crew(2, min_healthy=2)
        await crew.begin()
        crew.stillborn = True
        crew.made[0].dead = True
        with pytest.raises(StallAbort, match=r"1 of 2 engines alive for 20 s.*min_healthy") as end:
            while True:
                await respond(crew.pool, request(1))
        with pytest.raises(StallAbort):
            await respond(crew.pool, request(2))
        assert end.value.exit_code == 69
        await crew.pool.close()

    drive(scenario())


def test_without_any_engine_a_request_and_an_update_fail_in_bounded_time() -> None:
    async def scenario() -> None:
        crew = Crew(1)
        await crew.begin()
        crew.stillborn = crew.made[0].dead = True
        with pytest.raises((InfrastructureFailure, StallAbort)):
            await respond(crew.pool, request(1))
        with pytest.raises(StallAbort, match="engines"):
            await crew.push(1)
        await crew.pool.close()

    drive(scenario())


def test_a_pool_that_does_not_come_up_says_why() -> None:
    async def scenario() -> None:
        crew = Crew(2, min_healthy=1)
        for engine in crew.made:
            engine.dead = True
        with pytest.raises(InfrastructureFailure, match="killed"):
            await crew.pool.start()

    drive(scenario())


def test_a_failing_request_does_not_cost_a_living_engine() -> None:
    """The attempt is charged; the engine, asked, lives."""

    async def scenario() -> None:
        crew = Crew(1)
        await crew.begin()
        real = crew.made[0].generate

        async def broken(asked: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
            async for chunk in real(asked):
                yield chunk
                raise InfrastructureFailure("this one only")

        crew.made[0].generate = broken  # type: ignore[method-assign]
        with pytest.raises(InfrastructureFailure, match="this one only"):
            await respond(crew.pool, request(1))
        assert crew.pool.healthy == 1 and len(crew.made) == 1
        await crew.pool.close()

    drive(scenario())


def test_an_abort_reaches_a_request_that_waits_for_an_engine() -> None:
    async def scenario() -> None:
        crew = Crew(1)
        await crew.begin()
        crew.stillborn = True
        work = asyncio.ensure_future(respond(crew.pool, request(1)))
        await asyncio.sleep(0.2)
        crew.made[0].dead = True
        await asyncio.sleep(3)
        await crew.pool.abort("r1")
        assert (await work).finish == "aborted"
        await crew.pool.close()

    drive(scenario())


def test_a_bug_in_an_engine_reaches_the_consumer_and_hangs_nobody() -> None:
    async def scenario() -> None:
        crew = Crew(2)
        await crew.begin()
        for engine in crew.made:
            engine.generate = buggy  # type: ignore[method-assign]
        with pytest.raises(InvariantError, match=r"r1.*no such tensor") as end:
            await asyncio.wait_for(respond(crew.pool, request(1)), 60)
        assert isinstance(end.value.__cause__, KeyError)
        assert crew.pool.healthy == 2
        await crew.pool.close()

    async def buggy(asked: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        if asked.id:
            raise KeyError("no such tensor")
        yield TokenChunk(asked.prompt_ids, np.zeros(0, np.float32), asked.prompt_ids)

    drive(scenario())


def test_a_member_that_is_refused_at_its_restart_is_tried_again() -> None:
    async def scenario() -> None:
        crew = Crew(2)
        await crew.begin()
        crew.refused, crew.made[0].dead = True, True
        await respond(crew.pool, request(1))
        await asyncio.sleep(5)
        assert crew.pool.healthy == 1 and any("not mounted" in told for told in crew.warnings)
        crew.refused = False
        await asyncio.sleep(40)
        assert crew.pool.healthy == 2
        await crew.pool.close()

    drive(scenario())


def test_a_member_may_take_longer_to_start_than_to_answer() -> None:
    async def scenario() -> None:
        crew = Crew(1)
        crew.made[0].loading_s = 45.0
        await crew.begin()
        assert crew.pool.healthy == 1 and len(crew.made) == 1
        await crew.pool.close()
        crew = Crew(1)
        crew.made[0].loading_s = 75.0
        with pytest.raises(InfrastructureFailure, match=r"start of engine 0: no answer in 60 s"):
            await crew.pool.start()

    drive(scenario())
