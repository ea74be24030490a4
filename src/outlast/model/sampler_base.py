"""What a sampler is, the counters they share, and the checks their answers pass.

A sampler owns admission, selection and eviction of prompt groups (DESIGN 5). It is a frozen value
with pure functions of the unsettled groups, of a version, and (admission only) of `SamplerState`,
whose counters and custom `own` values are restart-facing. Laws: S8 (staleness bound), L4 (nothing
waits for what nobody provides).
May import: `ids`, `groups`, `cut`, `errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec

from outlast.errors import InvariantError, NotRestorable
from outlast.model.cut import SamplerState
from outlast.model.groups import PERMIT_STATES, Group, GroupState
from outlast.model.ids import GroupId, Step, TrainerVersion

Groups = Mapping[GroupId, Group]
"""Unsettled groups by id. Groups in other states than a method asks for are skipped."""


@runtime_checkable
class Sampler(Protocol):
    """Admission, selection and eviction. All methods are pure and return at once.

    `name` is written into `SamplerState`; state never migrates across names. `stamps`: groups get
    a target step. `batch_size`: groups admitted together (P for a stamping sampler, else 1).
    `capacity_needed`: permits below which training could wait for ever. `max_lag`: largest
    trainer version - w that a selected group may have (S8); None promises none.
    """

    @property
    def name(self) -> str: ...

    @property
    def stamps(self) -> bool: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def capacity_needed(self) -> int: ...

    @property
    def max_lag(self) -> int | None: ...

    def admits(
        self,
        state: SamplerState,
        groups: Groups,
        *,
        version: TrainerVersion,
        acknowledged: TrainerVersion,
    ) -> bool:
        """Whether one more batch may be drawn, for the trainer at `version` and engines that all
        acknowledge `acknowledged` <= `version`."""
        ...

    def target(self, state: SamplerState) -> Step | None:
        """The stamp of the next batch; None from samplers that do not stamp."""
        ...

    def admitted(self, state: SamplerState, count: int) -> SamplerState:
        """The counters after one batch of `count` groups was admitted."""
        ...

    def credited(self, state: SamplerState, count: int) -> SamplerState:
        """The counters after `count` groups were filtered, evicted, aborted or given up.

        A replacement that takes over the slot of a given-up group keeps its admission: then
        neither this nor `admitted` is called.
        """
        ...

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        """BUFFERED groups for the step after trainer `version`: as many as may be, up to
        `at_most`; none when there are fewer than `at_least`. Never waits."""
        ...

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        """BUFFERED groups that can never be selected any more."""
        ...

    def abort(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        """OPEN and COMPLETE groups that are not worth finishing."""
        ...


@dataclass(frozen=True)
class SamplerBase:
    """Shared behaviour of samplers that do not stamp; a custom sampler may start from it.

    A subclass adds `name`, `capacity_needed`, `max_lag`, `admits` and `select`. P is
    `prompts_per_step`, the groups that one optimizer step consumes.
    """

    prompts_per_step: int

    @property
    def name(self) -> str:
        """Name written into the state; `module:Class` unless a subclass says otherwise."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def stamps(self) -> bool:
        return False

    @property
    def batch_size(self) -> int:
        return 1

    def target(self, state: SamplerState) -> Step | None:
        return None

    def admitted(self, state: SamplerState, count: int) -> SamplerState:
        return msgspec.structs.replace(state, admitted=state.admitted + count)

    def credited(self, state: SamplerState, count: int) -> SamplerState:
        total = state.credited + count
        if total > state.admitted:
            raise InvariantError(
                f"sampler {self.name}: {total} admissions given back of {state.admitted}; "
                "a group was credited twice or never admitted"
            )
        return msgspec.structs.replace(state, credited=total)

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return ()

    def abort(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return ()


def group_version(group: Group) -> int:
    """`Group.version` for hot loops: the same minimum without a property call per sibling."""
    return min(
        [s.attempt.version if s.receipt is None else s.receipt.min_version for s in group.siblings]
    )


def place(group: Group) -> int:
    """Buffer position of a group that has one."""
    if group.position is None:
        raise InvariantError(f"group {group.id} is {group.state} without a buffer position")
    return group.position


def in_buffer_order(groups: Iterable[Group]) -> list[Group]:
    """Groups by `position`, the order in which they were committed."""
    return sorted(groups, key=place)


def take(
    candidates: Iterable[Group], *, at_least: int, at_most: int, when: Callable[[Group], bool]
) -> tuple[GroupId, ...]:
    """The first `at_most` candidates that satisfy `when`; none when fewer than `at_least` do."""
    picked: list[GroupId] = []
    for group in candidates:
        if len(picked) >= at_most:
            break
        if when(group):
            picked.append(group.id)
    return tuple(picked) if len(picked) >= at_least else ()


def check_selection(
    sampler: Sampler,
    groups: Groups,
    *,
    picked: Sequence[GroupId],
    version: TrainerVersion,
    at_least: int,
    at_most: int,
) -> int:
    """S8 and the contract of `select` on one answer; returns the largest lag (0 for none).

    Cheap enough for every selection, O(picked). Raises InvariantError naming the group.
    """
    who = f"sampler {sampler.name} at trainer version {version}"
    if picked and not at_least <= len(picked) <= at_most:
        raise InvariantError(f"{who} selected {len(picked)} groups, asked {at_least}..{at_most}")
    if len(set(picked)) != len(picked):
        raise InvariantError(f"{who} selected a group twice: {list(picked)}")
    worst = 0
    for group_id in picked:
        group = groups.get(group_id)
        if group is None or group.state is not GroupState.BUFFERED:
            found = "unknown" if group is None else str(group.state)
            raise InvariantError(f"{who} selected group {group_id}, which is {found}, not buffered")
        lag = version - group_version(group)
        if lag < 0:
            raise InvariantError(f"S8: {who} selected group {group_id} with negative age {lag}")
        if sampler.max_lag is not None and lag > sampler.max_lag:
            raise InvariantError(
                f"S8: {who} selected group {group_id} that lags {lag} versions; "
                f"at most {sampler.max_lag} are allowed"
            )
        worst = max(worst, lag)
    return worst


def check_restored(
    sampler: Sampler, state: SamplerState, *, groups: Groups, version: TrainerVersion
) -> None:
    """Refuse counters that contradict the restored groups, instead of discarding groups later.

    Raises NotRestorable: another sampler's state, a stamp above the batches counted (admission
    would stamp that step a second time) or of a step that trainer `version` has behind it, a
    missing or foreign stamp, or more groups than admitted.
    """
    if state.name != sampler.name:
        raise NotRestorable(
            f"the cut was made by sampler {state.name!r}, the recipe names {sampler.name!r}; "
            "sampler state does not migrate: restore the old sampler or fork the run"
        )
    live = [group for group in groups.values() if group.state in PERMIT_STATES]
    if len(live) > state.admitted - state.credited:
        raise NotRestorable(
            f"sampler {state.name} holds {len(live)} groups, but counts {state.admitted} admitted "
            f"- {state.credited} credited; the cut contradicts itself: restore another one"
        )
    for group in live:
        if sampler.stamps != (group.target_step is not None):
            raise NotRestorable(
                f"group {group.id} has target step {group.target_step} under sampler "
                f"{state.name}; the cut contradicts itself: restore another one"
            )
        if group.target_step is not None and group.target_step <= version:
            raise NotRestorable(
                f"group {group.id} has target step {group.target_step}, but the trainer is at "
                f"version {version}, so that step is over; restore another cut"
            )
        if group.target_step is not None and group.target_step > state.batches:
            raise NotRestorable(
                f"group {group.id} has target step {group.target_step}, but only "
                f"{state.batches} batches were stamped; restore another cut"
            )
