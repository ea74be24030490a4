"""Many changes, or one still moment: what a foreign store needs while it writes its checkpoint.

A waiting still moment goes before changes that come after it, and waits a bounded time for those
that began before. Not re-entrant; one event loop. May import: nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class Fence:
    """No change is under way while somebody is inside `still`."""

    def __init__(self) -> None:
        self._changing = 0
        self._open = asyncio.Event()
        """Cleared while a still moment is waited for or held."""
        self._idle = asyncio.Event()
        self._open.set()
        self._idle.set()

    @contextlib.asynccontextmanager
    async def change(self) -> AsyncIterator[None]:
        """One change; waits while it is still."""
        while not self._open.is_set():
            await self._open.wait()
        self._changing += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._changing -= 1
            if not self._changing:
                self._idle.set()

    @contextlib.asynccontextmanager
    async def still(self, *, timeout_s: float) -> AsyncIterator[None]:
        """Alone. Raises TimeoutError when the changes under way do not end in `timeout_s`."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
            yield
        finally:
            self._open.set()
