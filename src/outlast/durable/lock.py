"""The run lock: one controller per run directory, on one host by flock, across hosts by heartbeat.

The content of the file serves messages and the heartbeat rule only; a torn one is no obstacle.
May import: `files`, `names`, `manifest`.
"""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.files import FileLock, Files
from outlast.durable.manifest import encode
from outlast.errors import LockHeld
from outlast.model.ids import Incarnation
from outlast.world import World

HEARTBEAT_FRESH_S = 60.0
"""A lock of another host is respected while its heartbeat is younger than this."""


class LockContent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who holds the lock. `heartbeat` is wall-clock seconds since the epoch."""

    host: str
    pid: int
    incarnation: Incarnation | None
    heartbeat: float


class RunLock:
    """The held lock of a run directory. `beat` it every few seconds."""

    def __init__(self, held: FileLock, world: World) -> None:
        self._held = held
        self._world = world
        self._incarnation: Incarnation | None = None

    def beat(self, incarnation: Incarnation | None = None) -> None:
        """Refresh the heartbeat; `incarnation` is remembered once it is known."""
        self._incarnation = incarnation if incarnation is not None else self._incarnation
        content = LockContent(
            host=self._world.identity.host,
            pid=self._world.identity.pid,
            incarnation=self._incarnation,
            heartbeat=self._world.clock.wall(),
        )
        self._held.write(encode(content))

    def release(self) -> None:
        """Give the lock back; its content stays and names the last holder. Idempotent."""
        self._held.release()


def acquire(
    files: Files, run_dir: PurePosixPath, *, world: World, take_over: bool = False
) -> RunLock:
    """Lock `run_dir` (it exists). Raises LockHeld naming the holder.

    `take_over` overrides the heartbeat of another host, never a flock that is really held.
    """
    path = names.RunPaths(run_dir).lock
    held = files.try_lock(path)
    if held is None:
        raise LockHeld(
            f"{run_dir} is owned by {describe(content_of(files.read(path)))}. Stop it first, or "
            f"use another run directory."
        )
    content = content_of(held.read())
    if (
        content is not None
        and not take_over
        and _alive_elsewhere(files, run_dir, content=content, world=world)
    ):
        held.release()
        raise LockHeld(
            f"{run_dir} is owned by {describe(content)}, on another host, with a heartbeat of "
            f"less than {HEARTBEAT_FRESH_S:.0f} s. Stop it, wait, or pass --take-over."
        )
    lock = RunLock(held, world)
    lock.beat()
    return lock


def content_of(data: bytes) -> LockContent | None:
    """What a lock file says; None when it is torn."""
    try:
        return msgspec.json.decode(data, type=LockContent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def describe(content: LockContent | None) -> str:
    """The holder, for a message."""
    if content is None:
        return "a controller that left no readable name in the lock file"
    number = content.incarnation if content.incarnation is not None else "not yet adopted"
    return f"{process(content)}, incarnation {number}"


def process(content: LockContent | None) -> str:
    """The process alone, for locks of what is no run yet."""
    if content is None:
        return "a process that left no readable name"
    return f"pid {content.pid} on host {content.host}"


def _alive_elsewhere(
    files: Files, run_dir: PurePosixPath, *, content: LockContent, world: World
) -> bool:
    if content.host == world.identity.host:
        return False  # flock is reliable within a host, and it was free
    # Two hosts share no monotonic clock; a skew between them only lengthens the wait.
    if abs(world.clock.wall() - content.heartbeat) >= HEARTBEAT_FRESH_S:
        return False
    if content.incarnation is None:
        return True
    end = names.incarnation_end(content.incarnation)
    return not files.exists(names.RunPaths(run_dir).incarnations / end)
