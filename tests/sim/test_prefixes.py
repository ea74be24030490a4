"""Recovery level token in virtual time: what was received before a cut is never decoded again."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import numpy as np
import pytest

from outlast.ports import Rollout, RolloutRequest, TokenChunk
from outlast.testing import Answer, EngineProfile, FakeEnvironment, FakePrompts, Simulation

LONG = 1000
PER_S = 5
"""Tokens of one response per virtual second."""
SLOT = (0, 0)


def long_responses(*, interval_s: float, seed: int = 1, chunks: int = LONG) -> Simulation:
    """One step over one group of two responses of 1,000 tokens, five tokens a second."""
    sim = Simulation(
        prompts=2,
        siblings=2,
        groups_per_step=1,
        steps=1,
        window=0,
        level="token",
        response_tokens=LONG,
        rollout_timeout_s=LONG,
        interval_s=interval_s,
        seed=seed,
    )
    sim.engine.script(Answer(latency_s=LONG / PER_S, tokens=LONG, chunks=chunks), group=0)
    return sim


def tokens(sim: Simulation, slot: tuple[int, int] = SLOT) -> int:
    """How many tokens the sibling has received."""
    received = sim.received.get(slot)
    return 0 if received is None else len(received.ids)


def assert_begins(response: TokenChunk, prefix: TokenChunk) -> None:
    count = len(prefix.ids)
    for name in ("ids", "logprobs", "versions"):
        found, kept = getattr(response, name)[:count], getattr(prefix, name)
        assert found.tobytes() == kept.tobytes(), name


def decoded_again(sim: Simulation) -> int:
    return sim.auditor.tally.outcomes["tokens_again"]


def test_S13_killed_at_token_900_of_1000_with_a_cut_at_800_decodes_100_again() -> None:
    sim = long_responses(interval_s=801 / PER_S)
    assert sim.run_until(when=lambda: tokens(sim) >= 800)
    prefix = sim.received[SLOT]
    assert sim.run_until(snapshots=1) and tokens(sim) < 810
    assert sim.run_until(when=lambda: tokens(sim) >= 900)
    sim.kill(power_cut=True)
    sim.resume()
    assert sim.run().how == "finished"
    (report,) = sim.restored
    assert report.prefix_tokens_reused >= 2 * 800
    assert 0 < decoded_again(sim) <= 2 * 101
    assert_begins(sim.responses[SLOT], prefix)
    assert [len(response.ids) for response in sim.responses.values()] == [LONG, LONG]


@pytest.mark.slow
def test_S13_fifty_kills_at_random_tokens_cost_no_more_than_follows_the_last_cut() -> None:
    most = 0
    for seed in range(50):
        rng = random.Random(seed)
        spacing = rng.choice((50, 100, 190))
        sim = long_responses(interval_s=spacing / PER_S, seed=seed, chunks=LONG // 10)
        at = rng.randrange(1, LONG - 10)
        assert sim.run_until(when=lambda sim=sim, at=at: tokens(sim) >= at)  # type: ignore[misc]
        received = sim.received
        sim.kill(power_cut=rng.random() < 0.5)
        sim.resume()
        assert sim.run().how == "finished"
        again = decoded_again(sim) / 2
        kept = sum(report.prefix_tokens_reused for report in sim.restored) // 2
        assert again <= min(200, spacing + 10), f"seed {seed}"
        for slot, tokens_then in received.items():
            kept_ids = TokenChunk(
                ids=tokens_then.ids[:kept],
                logprobs=tokens_then.logprobs[:kept],
                versions=tokens_then.versions[:kept],
            )
            assert_begins(sim.responses[slot], kept_ids)
        most = max(most, int(again))
    assert 100 <= most <= 200


def test_S13_a_stop_request_keeps_the_tokens_of_attempts_that_it_cancels() -> None:
    sim = long_responses(interval_s=5000.0)
    assert sim.run_until(when=lambda: tokens(sim) >= 300)
    prefix = sim.received[SLOT]
    sim.sigterm()
    assert sim.run().exit_code == 75
    sim.resume()
    assert sim.run().how == "finished"
    assert sim.restored[0].prefix_tokens_reused >= 600
    assert decoded_again(sim) == 0
    assert_begins(sim.responses[SLOT], prefix)


def test_S13_tokens_wait_while_their_prompt_cannot_be_read() -> None:
    """The failed attempt holds no tokens, so the next cut names each sibling's once (S3)."""
    prompts = FakePrompts(2)
    sim = Simulation(
        prompts=2,
        siblings=2,
        groups_per_step=1,
        steps=1,
        window=0,
        level="token",
        interval_s=0.01,
        data_attempts=5,
        prompt_source=prompts,
    )
    sim.engine.script(Answer(latency_s=8.0, tokens=8, chunks=8), group=0)
    assert sim.run_until(when=lambda: tokens(sim) >= 5)
    assert sim.run_until(snapshots=2)
    sim.kill()
    prompts.unreadable = frozenset({0, 1})
    sim.resume()
    assert sim.run_until(when=lambda: sim.dispatched != [])
    prompts.unreadable = frozenset()
    assert sim.run_until(snapshots=2)
    assert sim.run().how == "finished"
    assert len(sim.responses[SLOT].ids) == 8


class ReadsOn(FakeEnvironment):
    """Reads each stream in a task of its own that goes on when the attempt has ended."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[asyncio.Task[Rollout]] = []

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        reader = asyncio.get_running_loop().create_task(super().rollout(request))
        self.readers.append(reader)
        return await asyncio.shield(reader)


def test_S3_what_an_environment_reads_after_its_attempt_ended_is_in_no_prefix() -> None:
    environment = ReadsOn()
    sim = Simulation(
        prompts=1,
        siblings=2,
        groups_per_step=1,
        steps=1,
        window=0,
        level="token",
        response_tokens=40,
        rollout_timeout_s=10.0,
        interval_s=1.0,
        environment=environment,
        engine=EngineProfile(latency_s=0.1),
    )
    for attempt in (0, 1):
        slow = Answer(latency_s=40.0, tokens=40, chunks=40)
        sim.engine.script(slow, group=0, sibling=0, attempt=attempt)
    sim.engine.script(Answer(tokens=40, chunks=8), group=0, sibling=0, attempt=2)
    assert sim.run().how == "finished"
    assert len(environment.readers) >= 4
    assert np.all(sim.responses[SLOT].versions == 0) and len(sim.responses[SLOT].ids) == 40


class TwoTurns(FakeEnvironment):
    """A second generation follows the first; both are in the row."""

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        first = await super().rollout(request)
        prompt = np.concatenate([first.prompt_ids, first.response_ids])
        chunks = [chunk async for chunk in request.generate(prompt, request.sampling)]
        return replace(
            first,
            response_ids=np.concatenate([first.response_ids, *(c.ids for c in chunks)]),
            logprobs=np.concatenate([first.logprobs, *(c.logprobs for c in chunks)]),
            weight_versions=np.concatenate([first.weight_versions, *(c.versions for c in chunks)]),
            loss_mask=np.ones(len(first.response_ids) + sum(len(c.ids) for c in chunks), np.bool_),
        )


@pytest.mark.parametrize("seed", range(6))
def test_S13_only_the_first_of_two_turns_is_inherited(seed: int) -> None:
    sim = Simulation(
        prompts=6,
        siblings=2,
        groups_per_step=2,
        steps=3,
        level="token",
        interval_s=0.5,
        seed=seed,
        environment=TwoTurns(),
        engine=EngineProfile(latency_s=2.0, failure_share=0.3),
        infrastructure_attempts=50,
    )
    for tenths in (17, 23, 31, 42):
        if sim.run_until(seconds=tenths / 10):
            sim.kill(power_cut=seed % 2 == 0)
            sim.resume()
    assert sim.run().how == "finished"
    assert sim.audit().ok
