"""Ties the processes of an engine to the one that started it: none outlives it, however it ends.

An `Owner` travels in vLLM's configuration, which every process of the engine unpickles before it
does anything: that is where its watch begins, also in one that is still starting. May import: the
standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.5

_watched: set[Owner] = set()


@dataclass(frozen=True, slots=True)
class Owner:
    """The owning process: its pid, and the namespace of pids in which that means something."""

    pid: int
    namespace: str

    @classmethod
    def this(cls) -> Owner:
        """The calling process."""
        return cls(os.getpid(), _namespace())

    def __reduce__(self) -> tuple[object, tuple[int, str]]:
        return _received, (self.pid, self.namespace)


def _received(pid: int, namespace: str) -> Owner:
    """Unpickle an owner and, in another process of its machine, end when it ends."""
    owner = Owner(pid, namespace)
    if pid != os.getpid() and namespace == _namespace() and owner not in _watched:
        _watched.add(owner)
        threading.Thread(target=_watch, args=(pid,), name="outlast-owner", daemon=True).start()
    return owner


def _watch(pid: int) -> None:
    while _alive(pid):
        time.sleep(POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Whether the process runs; a dead one that nobody has collected yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _namespace() -> str:
    """Names the set of pids this process sees; empty where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
