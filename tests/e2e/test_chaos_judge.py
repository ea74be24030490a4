"""The auditor of chaos runs must see what it is there for: each lie is told once, and named."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from outlast.telemetry import events
from outlast.testing.chaos_blows import Kind, draw_blow
from outlast.testing.chaos_child import Taped
from outlast.testing.chaos_judge import Books, Standing, look
from tests.durable.lives import Life, receipt
from tests.telemetry import samples


@pytest.fixture
def lives(tmp_path: Path) -> tuple[Standing, Standing, Life]:
    """What a life left (step 1 is durable, group 2 whole, half of group 3), and what the next one
    leaves that was adopted and died at once."""
    first = Life(tmp_path)
    first.admit(4)
    first.step()
    first.checkpoint()
    first.finish(first.state.ledger.groups[2].id)
    key = first.state.dispatch(3, 0, version=first.state.version)
    first.state.seal(receipt(key, 1))
    first.snapshot()
    before = look(tmp_path)
    second = Life(tmp_path)
    return before, look(tmp_path), second


def _tape(*said: events.AnyEvent) -> list[Taped]:
    return [Taped(float(n), event) for n, event in enumerate(said)]


def _started(incarnation: int = 2) -> events.RunStarted:
    return events.RunStarted(
        run="r", incarnation=incarnation, run_dir="/r", recipe="toy", steps_target=9
    )


def _dispatched(key: str) -> events.AttemptDispatched:
    return events.AttemptDispatched(key=key, version=1, prefix_tokens=0)


def _books() -> Books:
    return Books(steps={1: (0, 1)})


def _found(before: Standing, after: Standing, *said: events.AnyEvent) -> list[str]:
    books = _books()
    books.judge(_tape(*said), before=before, after=after)
    return books.violations


def test_what_stands_is_read_from_disk(lives) -> None:
    before, after, _ = lives
    assert (before.name, before.sequence, before.version) == ("snapshot_000002", 2, 1)
    assert set(before.sealed()) == {(2, 0), (2, 1), (3, 0)} and before.waiting() == 3
    assert [before.settled(group) for group in range(5)] == [True, True, False, False, False]
    assert (before.incarnation, after.incarnation, after.restored_from) == (1, 2, 2)


def test_an_honest_life_passes_and_its_cost_is_counted(lives) -> None:
    before, after, _ = lives
    sealed = events.SiblingSealed(
        key="g3.s1.i2.n0", tokens=10, reward=0.0, versions=(1, 1), seconds=0.1
    )
    books = _books()
    loss = books.judge(
        _tape(_started(), _dispatched("g3.s1.i2.n0"), sealed), before=before, after=after
    )
    assert books.violations == []
    assert (loss.siblings_reused, loss.tokens_reused) == (3, 30)
    assert (loss.siblings_lost, loss.tokens_lost) == (1, 10)


@pytest.mark.parametrize(
    ("key", "law"),
    [
        ("g2.s0.i2.n0", "P1: g2.s0.i2.n0 is generated again; g2.s0.i1.n0 stood in the cut"),
        ("g3.s0.i2.n0", "P1: g3.s0.i2.n0 is generated again"),
        ("g1.s0.i2.n0", "S4: g1.s0.i2.n0: its prompt was settled before the cut"),
        ("g3.s1.i1.n1", "was dispatched by incarnation 2"),
    ],
)
def test_what_was_saved_must_not_be_generated_again(lives, key: str, law: str) -> None:
    before, after, _ = lives
    (found,) = _found(before, after, _started(), _dispatched(key))
    assert law in found


def test_the_newest_valid_cut_must_be_the_one_restored(lives, tmp_path: Path) -> None:
    before, after, _ = lives
    older = Standing(name="snapshot_000009", sequence=9, cut=before.cut, incarnation=1)
    (found,) = _found(older, after, _started())
    assert "restored 2, but snapshot_000009 stood" in found
    (twice,) = _found(before, after, _started(incarnation=1))
    assert "S7: incarnation 1 was used before" in twice


def test_steps_follow_each_other_and_replays_were_applied(lives) -> None:
    before, after, _ = lives
    (gap,) = _found(before, after, _started(), samples.step(3))
    assert "S1: step 3 follows version 1" in gap
    replayed = events.StepReplayed(step=7, metrics={}, differences={"loss": (1.0, 2.0)}, seconds=1)
    unknown, otherwise = _found(before, after, _started(), replayed)
    assert "step 7 is replayed, which nobody applied" in unknown
    assert "replays otherwise" in otherwise


def test_a_cut_of_mid_replay_stands_for_the_steps_it_has_still_to_replay(tmp_path: Path) -> None:
    """SIGTERM during a start: the last cut says version 0, and that step 1 is applied."""
    first = Life(tmp_path)
    first.admit(4)
    first.step()
    first.snapshot()
    assert look(tmp_path).version == 1
    second = Life(tmp_path)
    second.snapshot()
    before = look(tmp_path)
    assert before.cut is not None and before.cut.trainer_version == 0
    restored = msgspec.structs.replace(
        samples.restored(),
        sequence=before.sequence,
        trainer_version=0,
        steps_to_replay=1,
        siblings_reused=before.waiting(),
    )
    replayed = events.StepReplayed(step=1, seconds=0.1, differences={}, metrics={})
    books = _books()
    books.judge(_tape(_started(3), restored, replayed), before=before, after=before)
    assert books.violations == []


def test_what_was_acknowledged_must_stand(lives) -> None:
    before, after, _ = lives
    said = events.CheckpointPublished(
        version=2, sequence=5, bytes=1, stage_s=0.0, write_s=0.0, commit_s=0.0
    )
    (found,) = _found(before, after, _started(), said)
    assert "A2: cut 5 was acknowledged; the newest valid one is 2" in found


def test_what_a_power_cut_took_is_not_given_out_again(lives) -> None:
    """The disk forgot the incarnation and the cut that the life before had announced."""
    before, after, _ = lives
    books = _books()
    books.announced, books.acknowledged = 3, 2
    said = events.CheckpointPublished(
        version=2, sequence=2, bytes=1, stage_s=0.0, write_s=0.0, commit_s=0.0
    )
    books.judge(_tape(_started(incarnation=3), said), before=before, after=after)
    used, twice = books.violations
    assert "S7: incarnation 3 was used before" in used
    assert "A5: cut 2 was acknowledged before" in twice


def test_the_end_is_compared_with_the_audit(lives, tmp_path: Path) -> None:
    _, _, life = lives
    life.finish(life.state.ledger.groups[3].id)
    life.step()
    life.checkpoint()
    honest = Books(steps={1: (0, 1), 2: (2, 3)})
    honest.close(tmp_path, target=2)
    assert honest.violations == []
    lying = Books(steps={1: (0, 1), 2: (1,)})
    lying.close(tmp_path, target=3)
    assert [v.split(": ", 1)[1] for v in lying.violations] == [
        "S1: a group stands in two surviving steps",
        "3 groups in surviving steps, audit: 4",
        "the run ended at 2, its target is 3",
    ]


def test_equal_seeds_draw_equal_blows_of_every_kind() -> None:
    one, two = random.Random(4), random.Random(4)
    blows = [draw_blow(one, tuple(Kind)) for _ in range(200)]
    assert blows == [draw_blow(two, tuple(Kind)) for _ in range(200)]
    assert {blow.kind for blow in blows} == set(Kind)
    assert len({blow.place for blow in blows}) > 20
