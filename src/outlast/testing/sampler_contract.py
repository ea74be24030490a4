"""The contract every sampler passes, built in or custom. Public: run it on yours.

    from outlast.testing.sampler_contract import check_sampler

    def test_my_sampler():
        check_sampler(lambda P: MySampler(prompts_per_step=P), steps=30)

It draws populations of groups and asks twice (purity, determinism, the arguments untouched), checks
what may be selected, evicted and aborted, and then plays a small closed-loop run with slow,
filtered and late groups in which every step must fill up (no starvation) within the staleness that
the sampler declares (S8). Failures are AssertionErrors that name the case; `seed` reproduces it.
May import: `model`, `testing.records`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from outlast.model.cut import SamplerState
from outlast.model.groups import PERMIT_STATES, Group, GroupState
from outlast.model.ids import GroupId, TrainerVersion
from outlast.model.samplers import Sampler, check_selection
from outlast.testing.records import make_group

Factory = Callable[[int], Sampler]
"""Builds the sampler under test for P prompts per step."""

UNREADY = (GroupState.OPEN, GroupState.COMPLETE)
STATES = (
    *UNREADY,
    GroupState.BUFFERED,
    GroupState.BUFFERED,
    GroupState.BUFFERED,
    GroupState.CLAIMED,
    GroupState.APPLIED,
    GroupState.REPLAY,
)


def check_sampler(factory: Factory, *, steps: int = 20, cases: int = 60, seed: int = 0) -> None:
    """Run every check of the contract. Raises AssertionError (or InvariantError for S8)."""
    check_declaration(factory)
    for case in range(cases):
        check_population(factory, random.Random(f"{seed}/{case}"))
    for P in (1, 2, 4):
        for round_ in range(3):
            check_run(factory(P), prompts_per_step=P, steps=steps, seed=seed + round_)


def check_declaration(factory: Factory) -> None:
    """What a sampler states about itself must agree, and must not depend on the instance."""
    for P in (1, 3, 8):
        sampler, again = factory(P), factory(P)
        who = f"{sampler.name} with P={P}"
        assert sampler.name == again.name, f"{who}: the name differs between instances"
        assert sampler.batch_size == (P if sampler.stamps else 1), (
            f"{who}: batch_size {sampler.batch_size}; P is required if it stamps, else 1"
        )
        assert sampler.capacity_needed >= P, (
            f"{who}: capacity_needed {sampler.capacity_needed} cannot hold one step"
        )
        assert sampler.max_lag is None or sampler.max_lag >= 0, f"{who}: negative max_lag"
        state = start(sampler)
        assert (sampler.target(state) is not None) == sampler.stamps, (
            f"{who}: stamps is {sampler.stamps}, target is {sampler.target(state)}"
        )
        moved = sampler.admitted(state, sampler.batch_size)
        assert moved.admitted == sampler.batch_size and moved.name == sampler.name, (
            f"{who}: admitted() must count the groups and keep the name; it gave {moved}"
        )
        assert moved.batches == int(sampler.stamps), f"{who}: batches counts stamped batches"
        back = sampler.credited(moved, 1)
        assert (back.admitted, back.credited) == (moved.admitted, 1), (
            f"{who}: credited() must count the groups given back; it gave {back}"
        )
        assert msgspec.json.decode(msgspec.json.encode(back), type=SamplerState) == back, (
            f"{who}: state does not survive JSON"
        )


def check_population(factory: Factory, rng: random.Random) -> None:
    """One random population, asked with several bounds at several versions."""
    P = rng.choice((1, 2, 5))
    sampler = factory(P)
    version = TrainerVersion(rng.randrange(5))
    groups = _population(sampler, rng, version=version)
    before = msgspec.json.encode(list(groups.values()))
    state = msgspec.structs.replace(start(sampler), admitted=len(groups), batches=9)
    for at_most in (1, P, 2 * P):
        for at_least in range(1, at_most + 1):
            picked = _select_twice(
                sampler, groups, version=version, at_least=at_least, at_most=at_most
            )
            check_selection(
                sampler, groups, picked=picked, version=version, at_least=at_least, at_most=at_most
            )
            most = _select_twice(sampler, groups, version=version, at_least=1, at_most=at_most)
            assert len(most) < at_least or picked == most, (
                f"{sampler.name}: {len(most)} groups were selectable, yet at_least={at_least} "
                f"changed the choice from {most} to {picked}"
            )
    for method, allowed in (("evict", (GroupState.BUFFERED,)), ("abort", UNREADY)):
        gone = getattr(sampler, method)(groups, version)
        again = getattr(factory(P), method)(groups, version)
        assert gone == again, f"{sampler.name}: {method} is not deterministic"
        assert len(set(gone)) == len(gone), f"{sampler.name}: {method} repeats a group: {gone}"
        for group_id in gone:
            found = groups[group_id].state
            assert found in allowed, f"{sampler.name}: {method} of group {group_id}, a {found} one"
    verdict = sampler.admits(state, groups, version=version, acknowledged=version)
    assert verdict == factory(P).admits(state, groups, version=version, acknowledged=version), (
        f"{sampler.name}: admits differs"
    )
    after = msgspec.json.encode(list(groups.values()))
    assert before == after, f"{sampler.name}: the groups were changed"


def _select_twice(
    sampler: Sampler,
    groups: dict[GroupId, Group],
    *,
    version: TrainerVersion,
    at_least: int,
    at_most: int,
) -> tuple[GroupId, ...]:
    """Ask once, then again with the mapping in another insertion order: buffer order decides."""
    picked = sampler.select(groups, version, at_least=at_least, at_most=at_most)
    shuffled = dict(reversed(groups.items()))
    again = sampler.select(shuffled, version, at_least=at_least, at_most=at_most)
    assert picked == again, f"{sampler.name}: select depends on the mapping's order: {again}"
    return picked


def _population(
    sampler: Sampler, rng: random.Random, *, version: TrainerVersion
) -> dict[GroupId, Group]:
    size = rng.randrange(12)
    positions = rng.sample(range(100), size)
    groups: dict[GroupId, Group] = {}
    for i in range(size):
        oldest, target = 0, None
        if sampler.stamps:
            # A stamped group is as young as its own admission rule made it.
            target = rng.randint(1, version + 2)
            oldest = min(version, max(0, target - 1 - (sampler.max_lag or 0)))
        groups[GroupId(i)] = make_group(
            i,
            state=rng.choice(STATES),
            versions=[rng.randint(oldest, version) for _ in range(2)],
            target=target,
            position=positions[i],
        )
    return groups


def start(sampler: Sampler) -> SamplerState:
    """The counters before the first admission, as a run makes them."""
    return SamplerState(name=sampler.name, admitted=0, credited=0, batches=0, own={})


class _Play:
    """A closed-loop run without tensors: groups become ready at random, engines lag by a beat."""

    def __init__(self, sampler: Sampler, rng: random.Random) -> None:
        self.sampler, self.rng = sampler, rng
        self.state = start(sampler)
        self.groups: dict[GroupId, Group] = {}
        self.drawn = self.committed = 0
        self.version = self.acknowledged = 0
        self.claimed: list[GroupId] = []
        self.worst = 0

    def admit(self) -> None:
        live = sum(group.state in PERMIT_STATES for group in self.groups.values())
        size, version = self.sampler.batch_size, TrainerVersion(self.acknowledged)
        if live + size > self.sampler.capacity_needed:
            return
        if not self.sampler.admits(
            self.state,
            self.groups,
            version=TrainerVersion(self.version),
            acknowledged=version,
        ):
            return
        target = self.sampler.target(self.state)
        for _ in range(size):
            self.groups[GroupId(self.drawn)] = make_group(
                self.drawn, state=GroupState.OPEN, versions=(version, version), target=target
            )
            self.drawn += 1
        self.state = self.sampler.admitted(self.state, size)

    def finish_one(self, *, filtering: bool) -> None:
        """One OPEN group becomes BUFFERED, or now and then is filtered away and credited."""
        unready = [g for g in self.groups.values() if g.state is GroupState.OPEN]
        if not unready:
            return
        group = self.rng.choice(unready)
        if filtering and not self.sampler.stamps and self.rng.random() < 0.2:
            self._drop([group.id])
            return
        self.groups[group.id] = make_group(
            group.id,
            versions=[s.version for s in group.siblings],
            target=group.target_step,
            position=self.committed,
        )
        self.committed += 1

    def sweep(self) -> None:
        version = TrainerVersion(self.version)
        self._drop(self.sampler.evict(self.groups, version))
        self._drop(self.sampler.abort(self.groups, version))

    def train(self, P: int) -> None:
        """Claim a chunk; finish the step when it is full."""
        missing = P - len(self.claimed)
        at_least, version = min(2, missing), TrainerVersion(self.version)
        picked = self.sampler.select(self.groups, version, at_least=at_least, at_most=missing)
        lag = check_selection(
            self.sampler,
            self.groups,
            picked=picked,
            version=version,
            at_least=at_least,
            at_most=missing,
        )
        self.worst = max(self.worst, lag)
        for group_id in picked:
            group = self.groups[group_id]
            self.groups[group_id] = msgspec.structs.replace(group, state=GroupState.CLAIMED)
        self.claimed += picked
        if len(self.claimed) == P:
            for group_id in self.claimed:
                del self.groups[group_id]
            self.claimed, self.version = [], self.version + 1

    def _drop(self, ids: tuple[GroupId, ...] | list[GroupId]) -> None:
        for group_id in ids:
            del self.groups[group_id]
        if ids:
            self.state = self.sampler.credited(self.state, len(ids))


def check_run(sampler: Sampler, *, prompts_per_step: int, steps: int, seed: int) -> int:
    """Play `steps` steps with exactly `capacity_needed` permits; returns the largest lag seen."""
    play = _Play(sampler, random.Random(f"run {seed}"))
    patience = 200 * prompts_per_step * steps
    for beat in range(patience):
        play.admit()
        play.finish_one(filtering=beat < patience // 2)
        play.sweep()
        play.train(prompts_per_step)
        if play.rng.random() < 0.5:
            play.acknowledged = play.version
        if play.version >= steps:
            return play.worst
    raise AssertionError(
        f"{sampler.name} starves: step {play.version + 1} never filled up in {patience} beats; "
        f"{len(play.claimed)} of {prompts_per_step} claimed, counters {play.state}, groups "
        f"{[(g.id, str(g.state), g.version, g.target_step) for g in play.groups.values()]}"
    )
