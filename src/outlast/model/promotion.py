"""Who may be restamped for an earlier step when the data has ended (L4). May import: `groups`."""

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
