"""S8, L4: every rule of the sampler table (DESIGN 5), at its boundary values."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outlast.errors import InvariantError, NotRestorable
from outlast.model.cut import SamplerState
from outlast.model.groups import Group, GroupState
from outlast.model.ids import GroupId, TrainerVersion
from outlast.model.samplers import (
    InOrder,
    ReadyFirst,
    Sampler,
    WeightFifo,
    Windowed,
    check_restored,
    check_selection,
)
from outlast.testing.records import make_group

OPEN, COMPLETE, BUFFERED = GroupState.OPEN, GroupState.COMPLETE, GroupState.BUFFERED
CLAIMED, APPLIED, REPLAY = GroupState.CLAIMED, GroupState.APPLIED, GroupState.REPLAY
BUILT_IN = (InOrder(4, 1), WeightFifo(4, 1), ReadyFirst(4, 1), Windowed(4, 1))


def table(*groups: Group) -> dict[GroupId, Group]:
    return {group.id: group for group in groups}


def buffered(*weights: int) -> dict[GroupId, Group]:
    """BUFFERED groups 0.. with these versions, in buffer order."""
    return table(*(make_group(i, versions=(w, w + 1)) for i, w in enumerate(weights)))


def counters(
    name: str = "x", admitted: int = 0, credited: int = 0, batches: int = 0
) -> SamplerState:
    return SamplerState(name=name, admitted=admitted, credited=credited, batches=batches, own={})


def select(
    sampler: Sampler, groups: dict[GroupId, Group], version: int, at_least: int, at_most: int
) -> list[int]:
    picked = sampler.select(groups, TrainerVersion(version), at_least=at_least, at_most=at_most)
    check_selection(
        sampler,
        groups,
        picked=picked,
        version=TrainerVersion(version),
        at_least=at_least,
        at_most=at_most,
    )
    return list(picked)


def evict(sampler: Sampler, groups: dict[GroupId, Group], version: int) -> Sequence[int]:
    return sampler.evict(groups, TrainerVersion(version))


# ------------------------------------------------------------------------------------ admission


@pytest.mark.parametrize(("lookahead", "version", "allowed"), [(0, 0, 1), (1, 0, 2), (2, 3, 6)])
def test_in_order_admits_batches_below_v_plus_lookahead_plus_one(
    lookahead: int, version: int, allowed: int
) -> None:
    sampler, state, count = InOrder(4, lookahead), counters("in_order"), 0
    while sampler.admits(
        state, {}, version=TrainerVersion(version), acknowledged=TrainerVersion(version)
    ):
        assert sampler.target(state) == count + 1
        state, count = sampler.admitted(state, 4), count + 1
    assert count == allowed
    assert state == counters("in_order", admitted=4 * allowed, batches=allowed)


@pytest.mark.parametrize("kind", [WeightFifo, ReadyFirst])
@pytest.mark.parametrize(("staleness", "version", "allowed"), [(0, 0, 4), (1, 0, 8), (2, 3, 24)])
def test_counted_samplers_admit_below_p_times_window(
    kind: type[WeightFifo], staleness: int, version: int, allowed: int
) -> None:
    sampler = kind(4, staleness)
    v = TrainerVersion(version)
    assert sampler.admits(counters(admitted=allowed - 1), {}, version=v, acknowledged=v)
    assert not sampler.admits(counters(admitted=allowed), {}, version=v, acknowledged=v)
    assert sampler.admits(
        sampler.credited(counters(admitted=allowed), 1), {}, version=v, acknowledged=v
    )
    assert sampler.target(counters()) is None


@pytest.mark.parametrize(
    ("P", "ratio", "staleness", "population"),
    [(4, 1.0, 0, 4), (4, 1.0, 1, 8), (5, 1.1, 0, 6), (10, 1.1, 0, 11), (10, 1.1, 9, 110)],
)
def test_windowed_admits_below_its_population(
    P: int, ratio: float, staleness: int, population: int
) -> None:
    sampler = Windowed(P, staleness, over_sampling_ratio=ratio)
    assert sampler.population(behind=0) == population
    states = (OPEN, COMPLETE, BUFFERED, CLAIMED)
    groups = table(*(make_group(i, state=states[i % 4]) for i in range(population)))
    groups |= table(make_group(900, state=APPLIED), make_group(901, state=REPLAY))
    assert not sampler.admits(
        counters(admitted=10_000), groups, version=TrainerVersion(0), acknowledged=TrainerVersion(0)
    )
    del groups[GroupId(0)]
    assert sampler.admits(
        counters(admitted=10_000), groups, version=TrainerVersion(0), acknowledged=TrainerVersion(0)
    )


@pytest.mark.parametrize("sampler", BUILT_IN)
def test_an_admission_is_never_given_back_twice(sampler: Sampler) -> None:
    state = sampler.admitted(counters(sampler.name), 4)
    state = sampler.credited(state, 4)
    with pytest.raises(InvariantError, match="5 admissions given back of 4"):
        sampler.credited(state, 1)


@pytest.mark.parametrize(
    ("sampler", "needed", "lag"),
    [
        (InOrder(4, 0), 4, 0),
        (InOrder(4, 2), 12, 2),
        (WeightFifo(4, 0), 4, 0),
        (WeightFifo(4, 2), 12, 2),
        (ReadyFirst(4, 2), 12, None),
        (Windowed(4, 2, over_sampling_ratio=3.0), 4, 2),
    ],
)
def test_declared_capacity_and_staleness(sampler: Sampler, needed: int, lag: int | None) -> None:
    assert (sampler.capacity_needed, sampler.max_lag) == (needed, lag)
    assert sampler.batch_size == (4 if sampler.stamps else 1)


# ------------------------------------------------------------------------------------ selection


@pytest.mark.parametrize("sampler", BUILT_IN)
def test_selection_is_greedy_in_buffer_order_and_nothing_below_the_minimum(
    sampler: Sampler,
) -> None:
    groups = table(*(make_group(i, target=1, position=9 - i) for i in range(3)))
    assert select(sampler, groups, 0, 1, 2) == [2, 1]
    assert select(sampler, groups, 0, 3, 8) == [2, 1, 0]
    assert select(sampler, groups, 0, 4, 8) == []
    assert select(sampler, {}, 0, 1, 8) == []


@pytest.mark.parametrize("sampler", BUILT_IN)
def test_only_buffered_groups_are_selected_or_evicted(sampler: Sampler) -> None:
    states = (OPEN, COMPLETE, CLAIMED, APPLIED, REPLAY)
    groups = table(
        *(make_group(i, state=s, target=1, versions=(0, 0)) for i, s in enumerate(states))
    )
    assert select(sampler, groups, 0, 1, 8) == []
    assert evict(sampler, groups, 9) == ()


def test_in_order_selects_its_step_and_evicts_what_came_too_late() -> None:
    sampler = InOrder(2, 1)
    groups = table(*(make_group(i, target=i + 1, versions=(i, i)) for i in range(4)))
    assert select(sampler, groups, 2, 1, 4) == [2]
    assert evict(sampler, groups, 2) == (0, 1)
    assert sampler.abort(groups, TrainerVersion(2)) == ()


def test_weight_fifo_waits_for_the_oldest_version() -> None:
    sampler = WeightFifo(4, 2)
    groups = buffered(3, 2, 2, 3)
    assert select(sampler, groups, 3, 1, 8) == [1, 2, 0, 3]
    groups[GroupId(9)] = make_group(9, state=OPEN, versions=(2, 3))
    assert select(sampler, groups, 3, 1, 8) == [1, 2]
    assert select(sampler, groups, 3, 3, 8) == []
    groups[GroupId(9)] = make_group(9, state=COMPLETE, versions=(1, 3))
    assert select(sampler, groups, 3, 1, 8) == []


def test_weight_fifo_does_not_wait_for_what_lies_outside_the_window() -> None:
    sampler = WeightFifo(4, 1)
    groups = buffered(2, 1)
    groups[GroupId(8)] = make_group(8, state=OPEN, versions=(0, 0))
    groups[GroupId(9)] = make_group(9, state=OPEN, versions=(3, 3))
    assert select(sampler, groups, 2, 1, 8) == [1, 0]
    groups[GroupId(8)] = make_group(8, state=OPEN, versions=(1, 1))
    assert select(sampler, groups, 2, 1, 8) == [1]


def test_weight_fifo_does_not_wait_for_what_is_claimed() -> None:
    groups = buffered(1, 1)
    groups[GroupId(9)] = make_group(9, state=CLAIMED, versions=(0, 0))
    assert select(WeightFifo(4, 1), groups, 1, 2, 8) == [0, 1]


def test_weight_fifo_finishes_a_version_that_is_smaller_than_a_chunk() -> None:
    assert select(WeightFifo(4, 1), buffered(0, 1, 1, 1), 1, 2, 4) == [0, 1, 2, 3]


def test_ready_first_has_no_age_bound() -> None:
    sampler = ReadyFirst(4, 1)
    groups = buffered(0, 5, 99, 100)
    assert select(sampler, groups, 99, 1, 8) == [0, 1, 2]
    assert evict(sampler, groups, 99) == ()
    assert sampler.abort(groups, TrainerVersion(99)) == ()


@pytest.mark.parametrize(("freshest", "expected"), [(False, [1, 2, 3]), (True, [3, 2, 1])])
def test_windowed_selects_inside_its_window_only(freshest: bool, expected: list[int]) -> None:
    sampler = Windowed(4, 2, freshest_first=freshest)
    groups = buffered(0, 1, 2, 3, 4)
    assert select(sampler, groups, 3, 1, 8) == expected
    assert select(sampler, groups, 3, 1, 1) == expected[:1]
    assert evict(sampler, groups, 3) == (0,)


def test_windowed_aborts_unready_groups_below_the_window() -> None:
    groups = table(
        make_group(0, state=OPEN, versions=(0, 3)),
        make_group(1, state=COMPLETE, versions=(0, 3)),
        make_group(2, state=OPEN, versions=(1, 3)),
        make_group(3, state=CLAIMED, versions=(0, 0)),
        make_group(4, versions=(0, 0)),
    )
    assert Windowed(4, 2).abort(groups, TrainerVersion(3)) == (0, 1)
    assert evict(Windowed(4, 2), groups, 3) == (4,)
    assert evict(WeightFifo(4, 2), groups, 3) == (4,)
    assert WeightFifo(4, 2).abort(groups, TrainerVersion(3)) == ()


# ------------------------------------------------------------------- what the runtime checks on top


@pytest.mark.parametrize(
    ("picked", "version", "message"),
    [
        ([0, 0], 1, "selected a group twice"),
        ([0, 1, 2], 1, "selected 3 groups, asked 1..2"),
        ([3], 1, "selected group 3, which is open, not buffered"),
        ([7], 1, "selected group 7, which is unknown, not buffered"),
        ([0], 3, "S8: .* group 0 that lags 3 versions; at most 1 are allowed"),
        ([2], 1, "S8: .* group 2 with negative age -1"),
    ],
)
def test_s8_a_wrong_selection_is_an_error(picked: list[int], version: int, message: str) -> None:
    groups = buffered(0, 1, 2) | table(make_group(3, state=OPEN))
    with pytest.raises(InvariantError, match=message):
        check_selection(
            Windowed(4, 1),
            groups,
            picked=[GroupId(i) for i in picked],
            version=TrainerVersion(version),
            at_least=1,
            at_most=2,
        )


def test_s8_ready_first_reports_its_largest_lag() -> None:
    groups = buffered(0, 5, 7)
    ids = [GroupId(0), GroupId(1)]
    lag = check_selection(
        ReadyFirst(4, 1), groups, picked=ids, version=TrainerVersion(9), at_least=1, at_most=4
    )
    assert lag == 9


def test_restored_counters_must_agree_with_the_groups() -> None:
    sampler = InOrder(2, 1)
    groups = table(make_group(0, target=1), make_group(1, target=2), make_group(2, state=APPLIED))
    check_restored(
        sampler,
        counters("in_order", admitted=3, batches=2),
        groups=groups,
        version=TrainerVersion(0),
    )
    cases = [
        (counters("windowed", admitted=3, batches=2), "made by sampler 'windowed'.*'in_order'"),
        (counters("in_order", admitted=3, batches=1), "group 1 has target step 2, but only 1"),
        (counters("in_order", admitted=4, credited=3, batches=2), "holds 2 groups, but counts 4"),
    ]
    for state, message in cases:
        with pytest.raises(NotRestorable, match=message):
            check_restored(sampler, state, groups=groups, version=TrainerVersion(0))
    with pytest.raises(NotRestorable, match="group 0 has target step 1 under sampler windowed"):
        check_restored(
            Windowed(2, 1),
            counters("windowed", admitted=3),
            groups=groups,
            version=TrainerVersion(0),
        )
    with pytest.raises(NotRestorable, match="group 5 has target step None under sampler in_order"):
        check_restored(
            sampler,
            counters("in_order", admitted=3, batches=2),
            groups=table(make_group(5)),
            version=TrainerVersion(0),
        )


def test_windowed_leaves_room_for_engines_that_lag_behind() -> None:
    """A batch drawn before an acknowledgement starts old: drawing it in full would waste a part."""
    sampler = Windowed(4, 1)
    v1, v2, v3 = TrainerVersion(1), TrainerVersion(2), TrainerVersion(3)
    groups = table(*(make_group(i) for i in range(4)))
    assert sampler.admits(counters("windowed"), groups, version=v1, acknowledged=v1)
    assert not sampler.admits(counters("windowed"), groups, version=v2, acknowledged=v1)
    assert sampler.admits(counters("windowed"), {}, version=v2, acknowledged=v1)
    assert not sampler.admits(counters("windowed"), {}, version=v3, acknowledged=v1)
