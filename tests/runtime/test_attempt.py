"""Attempts at level token: what was decoded is never decoded again (P1), whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import numpy as np
import pytest

from outlast.errors import DataFailure, InfrastructureFailure
from outlast.model.cut import GENESIS, Anchor, AnchorKind
from outlast.model.groups import FailureKind, Receipt, RecoveryLevel
from outlast.model.ids import GroupId, Incarnation, SiblingIndex, TrainerVersion, WeightVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.plan import RunPlan
from outlast.model.sampler_kinds import ReadyFirst
from outlast.model.state import RecoveryState
from outlast.ports import (
    GenerationRequest,
    PromptItem,
    Rollout,
    RolloutRequest,
    SamplingParams,
    TokenChunk,
)
from outlast.rows import Int32, Row, row_digest
from outlast.runtime.attempt import Attempts, AttemptSettings
from outlast.runtime.board import Board
from outlast.runtime.prefixes import PrefixBook, prefix_rows
from outlast.telemetry import events
from outlast.telemetry.bus import Bus
from outlast.telemetry.events import AnyEvent
from outlast.world import real_world
from tests.model.toy import ListJournal

PROMPT = np.asarray([7, 8], dtype=np.int32)
ITEM = PromptItem(text="7 8")
G0, S0 = GroupId(0), SiblingIndex(0)
Script = Callable[[GenerationRequest], AsyncIterator[TokenChunk]]


def chunk(*ids: int, version: int = 0, finish: str | None = None) -> TokenChunk:
    return TokenChunk(
        ids=np.asarray(ids, dtype=np.int32),
        logprobs=np.asarray([-token / 10 for token in ids], dtype=np.float32),
        versions=np.full(len(ids), version, dtype=np.int32),
        finish=finish,  # type: ignore[arg-type]
    )


class ScriptedEngine:
    """Plays one script per request, in order; remembers the requests."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.requests: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        self.requests.append(request)
        return self.scripts.pop(0)(request)


class OneTurn:
    """Returns what was generated; `turns` generations, the last one counts."""

    def __init__(self, *, turns: int = 1, prompt: Int32 = PROMPT) -> None:
        self.turns = turns
        self.prompt = prompt
        self.rewards: list[float | Exception] = []

    identity: Mapping[str, str] = {}

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        for _ in range(self.turns):
            chunks = [c async for c in request.generate(self.prompt, request.sampling)]
        reward = self.rewards.pop(0) if self.rewards else 1.0
        if isinstance(reward, Exception):
            raise reward
        ids = np.concatenate([c.ids for c in chunks])
        return Rollout(
            prompt_ids=self.prompt,
            response_ids=ids,
            logprobs=np.concatenate([c.logprobs for c in chunks]),
            weight_versions=np.concatenate([c.versions for c in chunks]),
            loss_mask=np.ones(len(ids), dtype=np.bool_),
            reward=reward,
            truncated=False,
        )

    def shape(self, receipts: Sequence[Receipt], /) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        raise NotImplementedError


class Plane:
    """Remembers rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    async def put(self, rows: Sequence[Row], /) -> tuple[str, ...]:
        self.rows += rows
        return tuple(map(row_digest, rows))


class Bench:
    """One open group and the attempts of its first sibling."""

    def __init__(
        self,
        *scripts: Script,
        level: RecoveryLevel = RecoveryLevel.TOKEN,
        environment: OneTurn | None = None,
    ) -> None:
        plan = RunPlan(
            prompts_per_step=1,
            siblings=1,
            capacity=2,
            level=lambda _: level,
            dataset="toy",
            dataset_size=4,
            seed=0,
            epochs=1,
        )
        sampler = ReadyFirst(prompts_per_step=1, max_staleness=4)
        self.seen: list[AnyEvent] = []
        world = real_world(seed=0)
        state = RecoveryState(
            plan, sampler=sampler, journal=ListJournal(), incarnation=Incarnation(1)
        )
        self.board = Board(
            world=world,
            bus=Bus(world.clock, lambda event, _: self.seen.append(event)),
            state=state,
            anchor=Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS),
            parent=None,
            next_sequence=CutSequence(1),
        )
        state.admit(TrainerVersion(0))
        self.engine = ScriptedEngine(*scripts)
        self.plane = Plane()
        self.environment = environment or OneTurn()
        self.attempts = Attempts(
            self.board,
            AttemptSettings(
                seed=0, repeatable=False, sampling=SamplingParams(max_new_tokens=8), timeout_s=0.2
            ),
            engine=self.engine,  # type: ignore[arg-type]
            environment=self.environment,
            plane=self.plane,  # type: ignore[arg-type]
        )

    def serve(self, version: int) -> None:
        pair = WeightVersion(incarnation=Incarnation(1), version=TrainerVersion(version))
        self.board.served = pair

    def attempt(self) -> FailureKind | None:
        key = self.attempts.dispatch(G0, S0)
        return asyncio.run(self.attempts.run(key, ITEM))


async def break_off(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
    yield chunk(1, 2)
    yield chunk(3)
    raise InfrastructureFailure("the worker died")


async def hang(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
    yield chunk(1, 2, 3)
    await asyncio.sleep(60)


async def finish(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
    yield chunk(4, version=2)
    yield chunk(5, version=2, finish="stop")


@pytest.mark.parametrize("ends", [break_off, hang])
def test_an_interrupted_attempt_hands_its_tokens_to_the_next(ends: Script) -> None:
    bench = Bench(ends, finish)
    assert bench.attempt() is FailureKind.INFRASTRUCTURE
    bench.serve(2)
    assert bench.attempt() is None
    first, second = bench.engine.requests
    assert first.prefix is None
    assert second.prefix is not None
    assert second.prefix.ids.tolist() == [1, 2, 3]
    (row,) = bench.plane.rows
    assert row.response_ids.tolist() == [1, 2, 3, 4, 5]
    assert row.weight_versions.tolist() == [0, 0, 0, 2, 2]
    assert row.logprobs == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5])
    assert bench.board.generated_tokens == 5  # never eight


def test_the_version_of_a_continued_sibling_is_that_of_its_oldest_token() -> None:
    bench = Bench(break_off, finish)
    bench.attempt()
    bench.serve(2)
    key = bench.attempts.dispatch(G0, S0)
    assert bench.board.state.ledger.groups[G0].version == 0
    asyncio.run(bench.attempts.run(key, ITEM))
    receipt = bench.board.state.ledger.groups[G0].siblings[0].receipt
    assert receipt is not None
    assert (receipt.min_version, receipt.max_version) == (0, 2)


def test_other_levels_start_from_the_prompt() -> None:
    bench = Bench(break_off, finish, level=RecoveryLevel.SIBLING)
    bench.attempt()
    bench.attempt()
    assert [request.prefix for request in bench.engine.requests] == [None, None]
    assert bench.board.frozen_prefixes() == {}


def test_a_data_failure_does_not_pass_tokens_on() -> None:
    """The same tokens would only earn the same failure."""
    bench = Bench(finish, finish)
    bench.environment.rewards = [DataFailure("the reward function raised")]
    assert bench.attempt() is FailureKind.DATA
    assert bench.attempt() is None
    assert bench.engine.requests[1].prefix is None


def test_a_second_turn_ends_the_record() -> None:
    bench = Bench(finish, break_off, finish, finish, environment=OneTurn(turns=2))
    assert bench.attempt() is FailureKind.INFRASTRUCTURE
    assert bench.attempt() is None
    assert [request.prefix for request in bench.engine.requests] == [None] * 4


def test_another_prompt_discards_the_prefix_and_says_so() -> None:
    bench = Bench(break_off, finish)
    bench.attempt()
    bench.environment.prompt = np.asarray([9], dtype=np.int32)
    bench.attempt()
    assert bench.engine.requests[1].prefix is None
    assert any(isinstance(e, events.Warned) and "other tokens" in e.message for e in bench.seen)


def test_a_cut_holds_the_tokens_in_flight_and_those_that_wait() -> None:
    bench = Bench(break_off)
    bench.attempt()
    waiting = bench.board.frozen_prefixes()
    (row,) = prefix_rows(waiting)
    key = bench.board.state.ledger.groups[G0].siblings[0].attempt.key
    assert (row.key, row.response_ids.tolist()) == (key, [1, 2, 3])
    again = bench.attempts.dispatch(G0, S0)
    flying = bench.board.frozen_prefixes()
    assert {k: f.image.tokens for k, f in flying.items()} == {again: 3}
    bench.board.inflight[again].prefix.append(chunk(4))  # type: ignore[union-attr]
    (frozen,) = flying.values()
    assert frozen.image.tokens == 3
    assert bench.board.at_risk[0] == 4
    frozen.published()
    assert bench.board.at_risk[0] == 1


def test_a_restored_prefix_is_continued_and_is_not_at_risk() -> None:
    bench = Bench(break_off, finish)
    bench.attempt()
    saved = prefix_rows(bench.board.frozen_prefixes())
    bench.board.prefixes = PrefixBook(saved)
    key = bench.attempts.dispatch(G0, S0)
    assert bench.board.at_risk[0] == 0
    asyncio.run(bench.attempts.run(key, ITEM))
    assert bench.plane.rows[0].response_ids.tolist() == [1, 2, 3, 4, 5]


def test_random_break_offs_never_lose_or_repeat_a_token() -> None:
    """Any number of interruptions: each token of the row was decoded exactly once."""
    rng = random.Random(7)
    counter = iter(range(1, 1000))

    async def some(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        for _ in range(rng.randrange(3)):
            yield chunk(*(next(counter) for _ in range(rng.randrange(1, 4))))
        raise InfrastructureFailure("again")

    async def last(request: GenerationRequest) -> AsyncIterator[TokenChunk]:
        yield chunk(next(counter), finish="stop")

    bench = Bench(*[some] * 4, last)
    while bench.attempt() is not None:
        pass
    (row,) = bench.plane.rows
    assert row.response_ids.tolist() == list(range(1, next(counter)))
