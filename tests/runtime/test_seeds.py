"""Random streams of rollouts: one per sibling, the same in every life, unlike any other."""

from __future__ import annotations

from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.runtime.seeds import attempt_seed, sibling_seed


def key(group: int, sibling: int, *, incarnation: int = 1, n: int = 0) -> AttemptKey:
    return AttemptKey(GroupId(group), SiblingIndex(sibling), Incarnation(incarnation), n)


KEYS = [key(group, sibling) for group in range(60) for sibling in range(8)]


def test_no_two_siblings_share_a_stream() -> None:
    for run in (0, 1):
        assert len({sibling_seed(run, k) for k in KEYS}) == len(KEYS)
    assert sibling_seed(0, KEYS[0]) != sibling_seed(1, KEYS[0])


def test_a_stream_of_the_environment_is_the_same_in_every_attempt_and_life() -> None:
    again = [key(3, 2, incarnation=life, n=n) for life in (1, 2, 9) for n in (0, 4)]
    assert {sibling_seed(7, k) for k in again} == {sibling_seed(7, key(3, 2))}


def test_attempts_repeat_their_stream_only_where_that_is_asked_for() -> None:
    again = [key(3, 2, incarnation=life, n=n) for life in (1, 2) for n in (0, 1)]
    free = {attempt_seed(7, k, turn=1, repeatable=False) for k in again}
    fixed = {attempt_seed(7, k, turn=1, repeatable=True) for k in again}
    assert (len(free), len(fixed)) == (4, 1)
    turns = {attempt_seed(7, again[0], turn=turn, repeatable=True) for turn in range(5)}
    assert len(turns) == 5


def test_streams_never_meet_across_kinds() -> None:
    found = [sibling_seed(7, k) for k in KEYS]
    found += [attempt_seed(7, k, turn=1, repeatable=True) for k in KEYS]
    found += [attempt_seed(7, k, turn=1, repeatable=False) for k in KEYS]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 1 << 63 for seed in found)


def test_seeds_are_part_of_the_format() -> None:
    """A replayed or continued run must draw what the first one drew, in every release."""
    assert sibling_seed(0, key(0, 0)) == 4314080640656815155
    assert sibling_seed(7, key(3, 2)) == 5479270800422888871
    assert attempt_seed(7, key(3, 2), turn=1, repeatable=True) == 9223091601862949635
