"""Who may be restamped for an earlier step: when the data has ended (L4), and to stand in for a
dropped group that a later draw replaces. May import: `groups`.
"""

from __future__ import annotations

from collections.abc import Mapping

from outlast.model.groups import Group, GroupState
from outlast.model.ids import GroupId, Step

PROMOTABLE = (GroupState.OPEN, GroupState.COMPLETE, GroupState.BUFFERED)


def later_groups(groups: Mapping[GroupId, Group], step: Step) -> list[GroupId]:
    """Groups stamped for a step after `step` that no step has claimed, the earliest first."""
    later = [
        (group.target_step, group.id)
        for group in groups.values()
        if group.state in PROMOTABLE and group.target_step is not None and group.target_step > step
    ]
    return [group for _, group in sorted(later)]


def lender(groups: Mapping[GroupId, Group], step: Step) -> Group | None:
    """A finished group that can stand in at `step`: the oldest of the latest step after it, whose
    own replacement then has the longest time to come."""
    finished = [
        (-group.target_step, group.position or 0, group.id)
        for group in groups.values()
        if group.state is GroupState.BUFFERED
        and group.target_step is not None
        and group.target_step > step
    ]
    return groups[min(finished)[-1]] if finished else None
