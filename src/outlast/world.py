"""The seam for nondeterminism: clock, randomness, off-loop work and rare-path marks.

Everything in `model`, `durable` and `runtime` that could differ between two runs of one seed goes
through a `World`. Production passes `real_world()`; the simulator passes its own.
May import: nothing of Outlast.
"""

from __future__ import annotations

import asyncio
import os
import platform
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Clock(Protocol):
    """Two clocks: one that never jumps, and one that people read."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch (UTC); only ever shown or stored, never subtracted."""
        ...


class Offload(Protocol):
    """Runs blocking work off the event loop."""

    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return ``work(*args, **kwargs)``, raising what it raises.

        Cancelling the caller does not stop the work; it is waited for by `drain`.
        """
        ...


class Perhaps(Protocol):
    """A mark on a rare path. A no-op in production; the simulator and failpoints act on it."""

    def __call__(self, name: str, /) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


class ThreadOffload:
    """A small pool of named threads for disk work; the torch roles have their own threads."""

    def __init__(self, *, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="outlast-offload")

    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._pool.shutdown(wait=True)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this controller is, for lock messages and incarnation records."""

    host: str
    pid: int


def no_mark(name: str, /) -> None:
    """Do nothing: the production `Perhaps` without failpoints."""


@dataclass(frozen=True, slots=True)
class World:
    """What a run may ask of its surroundings besides its adapters and its disk."""

    clock: Clock
    offload: Offload
    random: random.Random
    identity: Identity
    perhaps: Perhaps = field(default=no_mark)


def real_world(*, seed: int, perhaps: Perhaps = no_mark) -> World:
    """The world of production. `seed` only jitters back-off; no result depends on it."""
    return World(
        clock=SystemClock(),
        offload=ThreadOffload(),
        random=random.Random(seed),
        identity=Identity(host=platform.node() or "localhost", pid=os.getpid()),
        perhaps=perhaps,
    )
