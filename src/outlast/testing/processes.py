"""Living processes as /proc shows them; nothing where there is none (macOS).

May import: nothing of Outlast.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One process at the moment of looking."""

    pid: int
    parent: int
    session: int
    command: str


def living() -> Iterator[Process]:
    """Every process but zombies."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent, _, session, *_ = (
                (entry / "stat").read_text().rpartition(")")[2].split(maxsplit=4)
            )
            if state not in "ZX":
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                text = command.decode(errors="replace").strip()
                yield Process(int(entry.name), int(parent), int(session), text)


def descendants(pid: int) -> list[Process]:
    """Every living process below `pid`."""
    children: dict[int, list[Process]] = {}
    for process in living():
        children.setdefault(process.parent, []).append(process)
    below: list[Process] = []
    waiting = [pid]
    while waiting:
        found = children.get(waiting.pop(), [])
        below += found
        waiting += [process.pid for process in found]
    return below
