"""A thread of its own for one torch role, with its own number of intra-op threads.

torch's thread count is per thread once set there, so engine and trainer can differ in one process
and the event loop keeps the default. May import: torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def use_threads(threads: int) -> None:
    """Give the calling thread, and only it, `threads` intra-op threads."""
    torch.get_num_threads()  # initialises the thread; otherwise the default is applied later
    torch.set_num_threads(threads)


class RoleThread:
    """Runs one piece of work after the other on one named thread."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix=name, initializer=use_threads, initargs=(threads,)
        )

    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return ``work(*args, **kwargs)``. Cancelling the caller does not stop running work."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))

    async def close(self) -> None:
        """End the thread after the work it is doing; work that has not begun is cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown, wait=True)
