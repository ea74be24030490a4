"""What every `GenerationEngine` must do, adapters and fakes alike.

Subclass `EngineContract` in a test module, name the class ``Test...`` and implement `make`;
override `run` to drive another event loop than asyncio's own (the simulator's, for instance).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from outlast.errors import Fenced, InfrastructureFailure, InvariantError
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion
from outlast.ports import GenerationEngine, GenerationRequest, SamplingParams, TokenChunk, Weights
from outlast.rows import Int32

FIRST, SECOND = Incarnation(1), Incarnation(2)


@dataclass(frozen=True, kw_only=True)
class EngineSubject:
    """An engine that was not started, and how to use it."""

    engine: GenerationEngine
    payload: Callable[[int], object]
    """Weights of a trainer version; those of different versions may be equal."""
    prompt: Int32
    long_tokens: int = 400
    """So many tokens that a request is still running after its first chunk."""
    exact: bool = True
    """Same request, same tokens, bit for bit, whatever else is in the batch."""


@dataclass(frozen=True)
class Response:
    """A finished stream in one piece."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str

    def prefix(self, count: int) -> TokenChunk:
        """The first `count` tokens in the form of `GenerationRequest.prefix`."""
        return TokenChunk(
            ids=np.asarray(self.ids[:count], dtype=np.int32),
            logprobs=np.asarray(self.logprobs[:count], dtype=np.float32),
            versions=np.asarray(self.versions[:count], dtype=np.int32),
        )


def gather(chunks: list[TokenChunk]) -> Response:
    """Join the chunks of one stream, checking the shape of each."""
    for number, chunk in enumerate(chunks):
        assert chunk.ids.dtype == np.int32
        assert chunk.logprobs.dtype == np.float32
        assert chunk.versions.dtype == np.int32
        assert len(chunk.ids) == len(chunk.logprobs) == len(chunk.versions)
        assert (chunk.finish is not None) == (number == len(chunks) - 1)
        assert (chunk.logprobs <= 0).all()
    finish = chunks[-1].finish
    assert finish is not None
    return Response(
        [int(token) for chunk in chunks for token in chunk.ids],
        [float(value) for chunk in chunks for value in chunk.logprobs],
        [int(version) for chunk in chunks for version in chunk.versions],
        finish,
    )


async def respond(engine: GenerationEngine, request: GenerationRequest) -> Response:
    """Run one request to its end."""
    return gather([chunk async for chunk in engine.generate(request)])


class EngineContract:
    """The suite. Each test starts an engine of its own."""

    def make(self) -> EngineSubject:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def check(self, test: Callable[[EngineSubject], Awaitable[None]]) -> None:
        """Run `test` against a started engine that serves version 0 of incarnation 1."""

        async def body() -> None:
            subject = self.make()
            await subject.engine.start()
            try:
                await self.update(subject, 0)
                await test(subject)
            finally:
                await subject.engine.close()

        self.run(body())

    async def update(
        self, subject: EngineSubject, version: int, incarnation: Incarnation = FIRST
    ) -> WeightVersion:
        pair = WeightVersion(incarnation, TrainerVersion(version))
        weights = Weights(version=pair, payload=subject.payload(version))
        return await subject.engine.update_weights(weights)

    def request(
        self, subject: EngineSubject, name: str = "r0", *, tokens: int = 12, seed: int = 7
    ) -> GenerationRequest:
        return GenerationRequest(
            id=name,
            incarnation=FIRST,
            prompt_ids=subject.prompt,
            sampling=SamplingParams(max_new_tokens=tokens),
            seed=seed,
        )

    def test_serves_nothing_before_the_first_update(self) -> None:
        async def body() -> None:
            subject = self.make()
            await subject.engine.start()
            try:
                assert subject.engine.served is None
                with pytest.raises(InvariantError):
                    await respond(subject.engine, self.request(subject))
                pair = await self.update(subject, 3)
                assert pair == subject.engine.served == WeightVersion(FIRST, TrainerVersion(3))
            finally:
                await subject.engine.close()

        self.run(body())

    def test_response_has_the_budgeted_tokens_at_the_served_version(self) -> None:
        async def test(subject: EngineSubject) -> None:
            response = await respond(subject.engine, self.request(subject, tokens=12))
            assert response.finish == "length"
            assert len(response.ids) == 12
            assert response.versions == [0] * 12

        self.check(test)

    def test_stop_token_ends_the_response_and_is_part_of_it(self) -> None:
        async def test(subject: EngineSubject) -> None:
            request = self.request(subject)
            whole = await respond(subject.engine, request)
            stop = whole.ids[5]
            sampling = replace(request.sampling, stop_token_ids=(stop,))
            response = await respond(subject.engine, replace(request, sampling=sampling))
            assert response.finish == "stop"
            assert response.ids == whole.ids[: whole.ids.index(stop) + 1]

        self.check(test)

    def test_seed_decides_the_tokens_whatever_else_is_generated(self) -> None:
        async def test(subject: EngineSubject) -> None:
            if not subject.exact:
                pytest.skip("this engine's numbers depend on the batch")
            alone = await respond(subject.engine, self.request(subject))
            others = (self.request(subject, f"o{n}", seed=n, tokens=5 + n) for n in range(6))
            together = await asyncio.gather(
                *(respond(subject.engine, other) for other in others),
                respond(subject.engine, self.request(subject)),
            )
            assert together[-1] == alone
            assert len({tuple(response.ids[:5]) for response in together}) > 1

        self.check(test)

    def test_prefix_is_continued_and_counts_against_the_budget(self) -> None:
        async def test(subject: EngineSubject) -> None:
            request = self.request(subject, tokens=12)
            whole = await respond(subject.engine, request)
            rest = await respond(subject.engine, replace(request, prefix=whole.prefix(5)))
            assert rest.finish == "length"
            assert len(rest.ids) == 7
            if subject.exact:
                assert rest.ids == whole.ids[5:]

        self.check(test)

    def test_complete_prefix_ends_at_once(self) -> None:
        async def test(subject: EngineSubject) -> None:
            request = self.request(subject, tokens=6)
            whole = await respond(subject.engine, request)
            full = await respond(subject.engine, replace(request, prefix=whole.prefix(6)))
            assert (full.ids, full.finish) == ([], "length")
            sampling = replace(request.sampling, stop_token_ids=(whole.ids[3],))
            stopped = replace(request, prefix=whole.prefix(4), sampling=sampling)
            response = await respond(subject.engine, stopped)
            assert (response.ids, response.finish) == ([], "stop")

        self.check(test)

    def test_abort_ends_one_stream_and_keeps_its_tokens(self) -> None:
        async def test(subject: EngineSubject) -> None:
            engine = subject.engine
            other = asyncio.ensure_future(respond(engine, self.request(subject, "other")))
            chunks = []
            request = self.request(subject, "doomed", tokens=subject.long_tokens)
            async for chunk in engine.generate(request):
                chunks.append(chunk)
                if len(chunks) == 1:
                    await engine.abort("doomed")
            response = gather(chunks)
            assert response.finish == "aborted"
            assert 0 < len(response.ids) < subject.long_tokens
            assert (await other).finish == "length"
            await engine.abort("doomed")
            await engine.abort("never seen")

        self.check(test)

    def test_closing_the_stream_or_cancelling_its_task_frees_the_request(self) -> None:
        async def test(subject: EngineSubject) -> None:
            request = self.request(subject, tokens=subject.long_tokens)
            stream = subject.engine.generate(request)
            await anext(stream)
            await stream.aclose()  # type: ignore[attr-defined]
            begun = asyncio.Event()

            async def consume() -> None:
                async for _ in subject.engine.generate(request):
                    begun.set()

            task = asyncio.ensure_future(consume())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await respond(subject.engine, self.request(subject))).finish == "length"

        self.check(test)

    def test_weights_change_in_flight_and_versions_are_per_token(self) -> None:
        async def test(subject: EngineSubject) -> None:
            chunks = []
            request = self.request(subject, tokens=subject.long_tokens)
            async for chunk in subject.engine.generate(request):
                chunks.append(chunk)
                if len(chunks) == 1:
                    pair = await self.update(subject, 1)
                    assert pair == WeightVersion(FIRST, TrainerVersion(1))
            response = gather(chunks)
            assert response.finish == "length"
            assert len(response.ids) == subject.long_tokens
            assert sorted(response.versions) == response.versions
            assert set(response.versions) == {0, 1}

        self.check(test)

    def test_fence_aborts_and_refuses_other_incarnations(self) -> None:
        async def test(subject: EngineSubject) -> None:
            chunks = []
            request = self.request(subject, "old", tokens=subject.long_tokens)
            async for chunk in subject.engine.generate(request):
                chunks.append(chunk)
                if len(chunks) == 1:
                    await subject.engine.fence(SECOND)
            assert gather(chunks).finish == "aborted"
            with pytest.raises(Fenced):
                await respond(subject.engine, self.request(subject, "late"))
            await self.update(subject, 0, SECOND)
            own = replace(self.request(subject, "own"), incarnation=SECOND)
            assert (await respond(subject.engine, own)).finish == "length"

        self.check(test)

    def test_close_fails_open_streams_and_is_idempotent(self) -> None:
        async def test(subject: EngineSubject) -> None:
            request = self.request(subject, tokens=subject.long_tokens)
            stream = subject.engine.generate(request)
            await anext(stream)
            await subject.engine.close()
            with pytest.raises(InfrastructureFailure):
                async for _ in stream:
                    pass
            with pytest.raises(InfrastructureFailure):
                await respond(subject.engine, self.request(subject, "late"))
            await subject.engine.close()

        self.check(test)

    def test_many_requests_finish_each_with_its_own_budget(self) -> None:
        async def test(subject: EngineSubject) -> None:
            requests = [self.request(subject, f"m{n}", seed=n, tokens=1 + n % 9) for n in range(40)]
            responses = await asyncio.gather(*(respond(subject.engine, r) for r in requests))
            assert [len(r.ids) for r in responses] == [1 + n % 9 for n in range(40)]

        self.check(test)
