"""A custom sampler, as a user would write one: the oldest groups first, none beyond a staleness.

It counts its admissions like the built-in ones, prefers low versions without waiting for unready
groups, and evicts or aborts what has become too old. Also an example for the documentation.
May import: `model.samplers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.model.cut import SamplerState
from outlast.model.groups import Group, GroupState
from outlast.model.ids import GroupId, TrainerVersion
from outlast.model.samplers import Groups, SamplerBase

UNREADY = (GroupState.OPEN, GroupState.COMPLETE)


@dataclass(frozen=True)
class OldestFirst(SamplerBase):
    """Select by (version, position) within [v - S, v]; never wait."""

    max_staleness: int

    @property
    def name(self) -> str:
        return "oldest_first"

    @property
    def capacity_needed(self) -> int:
        return self.prompts_per_step * (self.max_staleness + 1)

    @property
    def max_lag(self) -> int | None:
        return self.max_staleness

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

    def select(
        self, groups: Groups, version: TrainerVersion, *, at_least: int, at_most: int
    ) -> tuple[GroupId, ...]:
        oldest = version - self.max_staleness
        ready = [
            (group.version, group.position or 0, group.id)
            for group in groups.values()
            if group.state is GroupState.BUFFERED and oldest <= group.version <= version
        ]
        picked = tuple(entry[2] for entry in sorted(ready)[:at_most])
        return picked if len(picked) >= at_least else ()

    def evict(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return self._older(groups, version, states=(GroupState.BUFFERED,))

    def abort(self, groups: Groups, version: TrainerVersion) -> tuple[GroupId, ...]:
        return self._older(groups, version, states=UNREADY)

    def _older(
        self, groups: Groups, version: TrainerVersion, *, states: tuple[GroupState, ...]
    ) -> tuple[GroupId, ...]:
        def old(group: Group) -> bool:
            return group.state in states and group.version < version - self.max_staleness

        return tuple(sorted(group.id for group in groups.values() if old(group)))
