"""Ends what is left of a run's own Ray cluster when its controller is gone, however it went.

    python -m outlast.adapters.ray_reaper MARK

Holds the reading end of a pipe to the controller. At its end, the death of the controller, every
process of the cluster is killed: Ray's own processes die with the controller except for two agents
of a hundred megabytes each. What belongs to the cluster carries MARK in its environment, or has
files open in the cluster's session directory (the agents change their titles, and overwrite their
environment with that). Linux only: it reads /proc.
May import: nothing of Outlast, so that it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import sys
import time
from pathlib import Path

VARIABLE = "OUTLAST_RAY_CLUSTER"
ROUNDS = 20
PAUSE_S = 0.25


SESSION_DIRECTORY = re.compile(r"/.*/session_[0-9_-]+/")


class Cluster:
    """What the processes of one cluster have in common."""

    def __init__(self, mark: str) -> None:
        self._needle = f"{VARIABLE}={mark}\0".encode()
        self._owner = os.getppid()
        self._directory: str | None = None
        """Ends with a slash; None until Ray has made it."""

    @property
    def orphaned(self) -> bool:
        return os.getppid() != self._owner

    def learn(self) -> None:
        """Find the session directory, while there are processes to learn it from."""
        if self._directory is None:
            paths = (path for pid in _processes() if self._marked(pid) for path in _files(pid))
            self._directory = next((m[0] for m in map(SESSION_DIRECTORY.match, paths) if m), None)

    def members(self) -> list[int]:
        """Open files count once the owner is dead: until then he and his forks have some too."""
        directory = self._directory if self.orphaned else None
        return [
            pid
            for pid in _processes()
            if self._marked(pid)
            or (directory is not None and any(p.startswith(directory) for p in _files(pid)))
        ]

    def _marked(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            return self._needle in Path(f"/proc/{pid}/environ").read_bytes()
        return False


def _processes() -> list[int]:
    """All but this one."""
    found = [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if pid != os.getpid()]


def _files(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(entry.readlink()))
    return found


def reap(cluster: Cluster) -> None:
    """Kill until nothing comes after: a dying process may just have started another one."""
    quiet = 0
    for _ in range(ROUNDS):
        found = cluster.members()
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        if quiet == 3:
            return
        time.sleep(PAUSE_S)


def main() -> None:
    """Wait for the end of the pipe, or of the parent if somebody else holds the pipe too (a child
    that it forked), whatever signals come meanwhile."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    cluster = Cluster(sys.argv[1])
    while not cluster.orphaned and not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        cluster.learn()
    cluster.learn()
    reap(cluster)


if __name__ == "__main__":
    main()
