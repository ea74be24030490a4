"""A generation engine in virtual time whose misbehaviour is scripted per attempt.

Token i of a response is a hash of (request seed, i, served weights), so content depends on the
policy and on nothing else (S11). The engine object may outlive a killed controller: then it still
serves the weights of the dead life and runs its requests until it is fenced (S3).
Passes the engine contract. May import: `ports`, `testing.scripts`, `testing.world`.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from outlast.errors import Fenced, InfrastructureFailure, InvariantError
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    SiblingIndex,
    WeightVersion,
)
from outlast.ports import GenerationRequest, TokenChunk, Weights
from outlast.testing.scripts import Answer, EngineProfile
from outlast.testing.world import Pulse

Served = Callable[[WeightVersion, str], None]
Requested = Callable[[GenerationRequest], None]
Streamed = Callable[[GenerationRequest, TokenChunk], None]
Finish = Literal["stop", "length", "aborted"] | None


@dataclass(slots=True)
class _Running:
    incarnation: Incarnation
    aborted: bool = False
    hurried: bool = False
    wake: asyncio.Future[None] | None = None


class FakeEngine:
    """`GenerationEngine` for simulations. Times in virtual seconds of the running loop."""

    def __init__(self, *, seed: int = 0, profile: EngineProfile | None = None) -> None:
        self.seed = seed
        self.profile = profile or EngineProfile()
        self.on_update: Served = lambda pair, payload: None
        """Called with what a weight update loaded."""
        self.on_request: Requested = lambda request: None
        """Called with every request that is accepted."""
        self.on_chunk: Streamed = lambda request, chunk: None
        """Called with every chunk, in the instant in which its consumer receives it."""
        self._scripted: dict[tuple[int, int | None, int | None], Answer] = {}
        self._running: dict[str, _Running] = {}
        self._served: WeightVersion | None = None
        self._payload = ""
        self._fence: Incarnation | None = None
        self._closed = False
        self._pulse = Pulse()
        self._rng = random.Random(f"engine/{seed}")

    # ------------------------------------------------------------------------------ scripting

    def script(
        self,
        answer: Answer,
        *,
        group: int,
        sibling: int | None = None,
        attempt: int | None = None,
    ) -> None:
        """Answer so whenever (group, sibling, attempt) asks; None stands for all.

        `attempt` counts within one life, from 0, like `AttemptKey.n`.
        """
        self._scripted[(group, sibling, attempt)] = answer

    def answer(self, key: AttemptKey) -> Answer:
        """What the engine does with attempt `key`: the most special script, else the profile."""
        for which in (
            (key.group, key.sibling, key.n),
            (key.group, key.sibling, None),
            (key.group, None, key.n),
            (key.group, None, None),
        ):
            if which in self._scripted:
                return self._scripted[which]
        return self.profile.draw(self.seed, key)

    def attach(self, pulse: Pulse) -> None:
        """A new life of the controller uses the engine; it keeps its state if it survives."""
        self._pulse = pulse
        if not self.profile.survives:
            self._running.clear()
            self._served, self._payload = None, ""

    def foreign_requests(self, incarnation: Incarnation) -> tuple[str, ...]:
        """Running requests of other incarnations: none may be left after a fence."""
        return tuple(i for i, run in self._running.items() if run.incarnation != incarnation)

    # ----------------------------------------------------------------------- GenerationEngine

    async def start(self) -> None:
        self._pulse.check()
        self._closed = False

    async def close(self) -> None:
        self._pulse.check()
        self._closed = True
        for run in list(self._running.values()):
            _abort(run)

    async def abort(self, request_id: str, /) -> None:
        self._pulse.check()
        if (run := self._running.get(request_id)) is not None:
            _abort(run)

    async def fence(self, incarnation: Incarnation, /) -> None:
        self._pulse.check()
        await asyncio.sleep(self._rng.random() * 0.1)
        self._pulse.check()
        self._fence = incarnation
        for request_id in self.foreign_requests(incarnation):
            _abort(self._running.pop(request_id))

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        self._pulse.check()
        await asyncio.sleep(self._rng.random() * self.profile.update_s)
        self._pulse.check()
        self._served, self._payload = weights.version, str(weights.payload)
        self.on_update(weights.version, self._payload)
        return weights.version

    @property
    def continues_prefixes(self) -> bool:
        return True

    @property
    def served(self) -> WeightVersion | None:
        self._pulse.check()
        return self._served

    @property
    def loaded(self) -> tuple[WeightVersion | None, str]:
        """What the engine really holds: the pair it was given, and the weights themselves."""
        return self._served, self._payload

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        pulse = self._pulse
        pulse.check()
        self._admit(request)
        run = self._running[request.id] = _Running(request.incarnation)
        self.on_request(request)
        try:
            async for chunk in self._stream(request, run, pulse=pulse):
                self.on_chunk(request, chunk)
                yield chunk
        finally:
            if pulse.alive:
                self._running.pop(request.id, None)

    async def _stream(
        self, request: GenerationRequest, run: _Running, *, pulse: Pulse
    ) -> AsyncIterator[TokenChunk]:
        answer, done = self._answer(request.id), 0
        position = 0 if request.prefix is None else len(request.prefix.ids)
        total = request.sampling.max_new_tokens
        if answer.tokens is not None:
            total = max(1, min(answer.tokens, total))  # a prefix is part of the response
        if (finish := _finished(request, position, total=total)) is not None:
            yield self._chunk(request, position, size=0, finish=finish)
            return
        sizes = _sizes(answer, total - position)
        for size in sizes:
            if done == answer.fails_after:
                break
            await self._pause(run, answer, share=1 / len(sizes))
            pulse.check()
            if self._closed:
                raise InfrastructureFailure(f"{request.id}: the engine was closed")
            if run.aborted:
                yield self._chunk(request, position, size=0, finish="aborted")
                return
            done, position = done + 1, position + size
            last: Finish = _last(request, position) if done == len(sizes) else None
            chunk = self._chunk(request, position - size, size=size, finish=last)
            yield chunk
            if chunk.finish is not None:
                return
        raise InfrastructureFailure(f"{request.id}: the engine's worker died")

    # ------------------------------------------------------------------------------ internals

    def _admit(self, request: GenerationRequest) -> None:
        if self._closed:
            raise InfrastructureFailure(f"{request.id}: the engine was closed")
        if self._fence is not None and request.incarnation != self._fence:
            raise Fenced(f"{request.id}: the engine belongs to incarnation {self._fence}")
        if self._served is None:
            raise InvariantError(f"{request.id}: the engine has no weights yet")
        if request.id in self._running:
            raise InvariantError(f"{request.id}: this id is running already")

    def _answer(self, request_id: str) -> Answer:
        key = attempt_of(request_id)
        if key is None:  # a validation request: well behaved
            return Answer(latency_s=self.profile.latency_s, tokens=None)
        return self.answer(key)

    async def _pause(self, run: _Running, answer: Answer, *, share: float) -> None:
        """Wait for the next chunk, an abort, or, if late, for nothing once abandoned."""
        if run.aborted or run.hurried:
            return
        loop = asyncio.get_running_loop()
        run.wake = loop.create_future()
        timer = None
        if not answer.hangs:
            timer = loop.call_later(answer.latency_s * share, _wake, run.wake)
        try:
            await run.wake
        except asyncio.CancelledError:
            if not answer.late:
                raise
            run.hurried = True  # abandoned, it answers anyway: the rest arrives at once
        finally:
            if timer is not None:
                timer.cancel()

    def _chunk(
        self, request: GenerationRequest, position: int, *, size: int, finish: Finish
    ) -> TokenChunk:
        served = self._served
        assert served is not None
        base = hashlib.sha256(f"{request.seed}/{self._payload}".encode()).digest()
        ids = [(base[(position + i) % 32] * 31 + position + i) % 997 for i in range(size)]
        for place, token in enumerate(ids):
            if token in request.sampling.stop_token_ids:
                ids, finish = ids[: place + 1], "stop"
                break
        return TokenChunk(
            ids=np.array(ids, np.int32),
            logprobs=np.full(len(ids), -0.5, np.float32),
            versions=np.full(len(ids), served.version, np.int32),
            finish=finish,
        )


def attempt_of(request_id: str) -> AttemptKey | None:
    """The attempt key that a rollout request's id (``g3.s1.i2.n0.t1``) begins with."""
    parts = request_id.split(".")
    if len(parts) != 5 or not parts[0].startswith("g"):
        return None
    group, sibling, incarnation, n = (int(part[1:]) for part in parts[:4])
    return AttemptKey(GroupId(group), SiblingIndex(sibling), Incarnation(incarnation), n)


def _sizes(answer: Answer, rest: int) -> list[int]:
    """Tokens per chunk."""
    if answer.tokens is None:
        return [min(8, rest - done) for done in range(0, rest, 8)]
    chunks = max(1, min(answer.chunks, rest))
    return [rest // chunks + (i < rest % chunks) for i in range(chunks)]


def _finished(request: GenerationRequest, position: int, *, total: int) -> Finish:
    """The end that a prefix has met already."""
    prefix, stops = request.prefix, request.sampling.stop_token_ids
    if prefix is not None and len(prefix.ids) and int(prefix.ids[-1]) in stops:
        return "stop"
    return _last(request, position) if position >= total else None


def _last(request: GenerationRequest, position: int) -> Finish:
    return "length" if position >= request.sampling.max_new_tokens else "stop"


def _abort(run: _Running) -> None:
    run.aborted = True
    if run.wake is not None:
        _wake(run.wake)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
