"""Which process below a run plays which role on Ray. May import: `processes`."""

from __future__ import annotations

from enum import StrEnum

from outlast.testing.processes import descendants


class Role(StrEnum):
    """Parts of a run that may fail alone."""

    ENGINE = "engine"
    STORAGE = "storage unit"
    QUEUE = "queue controller"
    RANK = "trainer rank"


ACTORS = {
    "EngineActor": Role.ENGINE,
    "SimpleStorageUnit": Role.STORAGE,
    "TransferQueueController": Role.QUEUE,
    "TrainerRank": Role.RANK,
}
"""Names of actor classes; a Ray worker shows its own in its command line."""


def roles_below(pid: int) -> dict[Role, list[int]]:
    """Living processes of each role among the descendants of `pid`."""
    found: dict[Role, list[int]] = {}
    for process in descendants(pid):
        for actor, role in ACTORS.items():
            if process.command.startswith("ray::") and actor in process.command:
                found.setdefault(role, []).append(process.pid)
    return found
