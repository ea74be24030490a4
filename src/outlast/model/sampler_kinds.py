"""The four built-in samplers of DESIGN 5 as frozen values.

v is the trainer version (in `admits`: the version acknowledged by every engine), w the version of
a group, P the prompts per step, S and L the windows. Complexity with n unsettled groups of G
siblings: one O(n) scan of states; then `in_order` sorts the groups of one step, `ready_first` and
`windowed` sort BUFFERED groups by position and read w only until `at_most` are found,
`weight_fifo` and `freshest_first` read w of all candidates, O(nG).
Laws: S8, L4. May import: `sampler_base`, `ids`, `groups`, `cut`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import msgspec

from outlast.model.cut import SamplerState
from outlast.model.groups import PERMIT_STATES, Group, GroupState
from outlast.model.ids import GroupId, Step, TrainerVersion, next_step
from outlast.model.sampler_base import (
    Groups,
    SamplerBase,
    group_version,
    in_buffer_order,
    place,
    take,
)

UNREADY: Final = frozenset({GroupState.OPEN, GroupState.COMPLETE})


def _buffered(groups: Groups) -> list[Group]:
    return [group for group in groups.values() if group.state is GroupState.BUFFERED]


@dataclass(frozen=True)
class InOrder(SamplerBase):
    """Batch b (from 0) is trained by step b + 1 and admitted while b < v + L + 1.

    S8: a group of target t is dispatched when engines acknowledge at least t - 1 - L (the
    admission rule at b = t - 1; acknowledged versions never fall) and selected at v = t - 1, so
    v - w <= L. `promote` only lowers t, which only lowers the lag.
    L4: batch v is always admissible at version v, so the step that is due can always fill up; a
    group later than its step is evicted. Credits are counted, but a lost group of a batch is made
    up by shrinking or replacing, not by admission.
    """

    lookahead: int

    @property
    def name(self) -> str:
        return "in_order"

    @property
    def stamps(self) -> bool:
        return True

    @property
    def batch_size(self) -> int:
        return self.prompts_per_step

    @property
    def capacity_needed(self) -> int:
        return self.prompts_per_step * (self.lookahead + 1)

    @property
    def max_lag(self) -> int | None:
        return self.lookahead

    def admits(
        self,
        state: SamplerState,
        groups: Groups,
        *,
        version: TrainerVersion,
        acknowledged: TrainerVersion,
    ) -> bool:
        return state.batches < acknowledged + self.lookahead + 1

    def target(self, state: SamplerState) -> Step | None:
        return Step(state.batches + 1)

    def admitted(self, state: SamplerState, count: int) -> SamplerState:
        state = super().admitted(state, count)
        return msgspec.structs.replace(state, batches=state.batches + 1)

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        due = next_step(version)
        ours = [group for group in _buffered(groups) if group.target_step == due]
        ordered = in_buffer_order(ours)
        return take(ordered, at_least=at_least, at_most=at_most, when=lambda group: True)

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        due = next_step(version)
        return tuple(
            group.id
            for group in in_buffer_order(_buffered(groups))
            if group.target_step is not None and group.target_step < due
        )


@dataclass(frozen=True)
class _Counted(SamplerBase):
    """Admission by counters: admitted - credited < P (v + S + 1).

    L4: steps 1..v consumed at most Pv admissions, so P more are always admissible at version v,
    and every group that leaves untrained gives its admission back.
    """

    max_staleness: int

    @property
    def capacity_needed(self) -> int:
        return self.prompts_per_step * (self.max_staleness + 1)

    def admits(
        self,
        state: SamplerState,
        groups: Groups,
        *,
        version: TrainerVersion,
        acknowledged: TrainerVersion,
    ) -> bool:
        window = acknowledged + self.max_staleness + 1
        return state.admitted - state.credited < self.prompts_per_step * window


@dataclass(frozen=True)
class WeightFifo(_Counted):
    """Oldest weights first: no group is selected past an older one that is not ready yet.

    Candidates are groups with w in [v - S, v]. Whole versions are taken in ascending order; at
    the first version with an unready group, its ready ones are the last that may be taken. (Going
    on when a version is used up matters: its remainder may be smaller than a chunk.) Unready
    groups outside the window are not waited for; they are evicted once they are buffered.
    S8: while engines acknowledge at most w, at most P(w + S + 1) uncredited groups are admitted,
    so at most that many have a version <= w. Steps take P each in ascending version, so the last
    of them is in step w + S + 1 at the latest, selected at v = w + S. Redispatch only raises w.
    L4: v stands still while a version waits, so it stays in the window, and each of its unready
    groups seals, is given up, or is redispatched at a later version.
    """

    @property
    def name(self) -> str:
        return "weight_fifo"

    @property
    def max_lag(self) -> int | None:
        return self.max_staleness

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        oldest = version - self.max_staleness
        waits_for: float = math.inf
        ready: list[tuple[int, int, GroupId]] = []
        for group in groups.values():
            buffered = group.state is GroupState.BUFFERED
            if not buffered and group.state not in UNREADY:
                continue
            weight = group_version(group)
            if not oldest <= weight <= version:
                continue
            if buffered:
                ready.append((weight, place(group), group.id))
            else:
                waits_for = min(waits_for, weight)
        allowed = sorted(entry for entry in ready if entry[0] <= waits_for)[:at_most]
        return tuple(entry[2] for entry in allowed) if len(allowed) >= at_least else ()

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return _older_than(_buffered(groups), version - self.max_staleness)


@dataclass(frozen=True)
class ReadyFirst(_Counted):
    """Whatever is ready, in buffer order. No age bound by design: the run reports the maximum.

    S8: none promised; a slow group may be selected at any age, which is why importance correction
    is required. No group is evicted, so none starves and data is not biased to short responses.
    """

    @property
    def name(self) -> str:
        return "ready_first"

    @property
    def max_lag(self) -> int | None:
        return None

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        ordered = in_buffer_order(_buffered(groups))
        return take(
            ordered,
            at_least=at_least,
            at_most=at_most,
            when=lambda group: group_version(group) <= version,
        )


@dataclass(frozen=True)
class Windowed(SamplerBase):
    """Bounded population: admit while fewer than ceil(ratio x P x (S + 1 - d)) permits are held.

    d is how far the engines lag behind the trainer. A group drawn as the k-th of the population is
    selected about k / P steps later and starts with lag d, so without the d a part of every batch
    that was drawn before an acknowledgement would be generated only to be evicted.
    S8: `select` itself takes only w in [v - S, v]. L4: whatever falls out of the window is evicted
    (BUFFERED) or aborted (OPEN, COMPLETE), which makes room for groups of current weights; the
    bound is at least P, so a step can always fill up.
    """

    max_staleness: int
    over_sampling_ratio: float = 1.0
    freshest_first: bool = False

    @property
    def name(self) -> str:
        return "windowed"

    @property
    def capacity_needed(self) -> int:
        return self.prompts_per_step

    @property
    def max_lag(self) -> int | None:
        return self.max_staleness

    def population(self, behind: int) -> int:
        """ceil(ratio x P x (S + 1 - behind)), exactly: 1.1 x 10 is 11, not 11.000000000000002."""
        ratio = Fraction(repr(self.over_sampling_ratio))
        return math.ceil(ratio * self.prompts_per_step * (self.max_staleness + 1 - behind))

    def admits(
        self,
        state: SamplerState,
        groups: Groups,
        *,
        version: TrainerVersion,
        acknowledged: TrainerVersion,
    ) -> bool:
        live = sum(group.state in PERMIT_STATES for group in groups.values())
        return live < self.population(version - acknowledged)

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        ordered = in_buffer_order(_buffered(groups))
        if self.freshest_first:
            ordered.sort(key=group_version, reverse=True)  # stable: buffer order within a version
        oldest = version - self.max_staleness
        return take(
            ordered,
            at_least=at_least,
            at_most=at_most,
            when=lambda group: oldest <= group_version(group) <= version,
        )

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return _older_than(_buffered(groups), version - self.max_staleness)

    def abort(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        unready = [group for group in groups.values() if group.state in UNREADY]
        return _older_than(unready, version - self.max_staleness)


def _older_than(groups: list[Group], oldest: int) -> tuple[GroupId, ...]:
    """Ids of the groups with w below `oldest`, by id."""
    return tuple(sorted(group.id for group in groups if group_version(group) < oldest))
