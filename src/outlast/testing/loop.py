"""An event loop in virtual time whose order is decided by a seed.

Built on asyncio's public `AbstractEventLoop`: tasks, task groups, timeouts, locks, semaphores and
sleeps work on it; threads, sockets, signals and subprocesses do not exist. Ready callbacks run in
an order drawn from the seed; when none is ready, time jumps to the next timer; when there is no
timer either, `Deadlock` lists who waits (L4). Futures and tasks hash by their serial number, so
that asyncio's own sets of tasks iterate in the same order in every process.
May import: nothing of Outlast.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SPIN_MAX = 100_000
"""Callbacks at one instant of virtual time before the loop calls it a livelock."""


class Deadlock(AssertionError):
    """Nothing is ready and no timer is set, yet the run is not over (L4)."""


class Livelock(AssertionError):
    """Callbacks keep running while virtual time stands still (L4)."""


class SimFuture(asyncio.Future[T]):
    """A future that hashes by serial number."""

    serial = 0

    def __hash__(self) -> int:
        return self.serial


class SimTask(asyncio.Task[T]):
    """A task that hashes by serial number."""

    serial = 0

    def __hash__(self) -> int:
        return self.serial


class SimLoop(asyncio.AbstractEventLoop):
    """One thread, one seed, no wall clock. Driven by `advance`, not by `run_forever`."""

    def __init__(self, rng: random.Random, *, start: float = 0.0) -> None:
        self._rng = rng
        self._now = start
        self._ready: list[asyncio.Handle] = []
        self._batch: list[asyncio.Handle] = []
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._spins = 0
        self._closed = False
        self._running = False
        self.failures: list[BaseException] = []
        """What callbacks (not tasks) raised: always a bug."""

    # ------------------------------------------------------------------------------- driving

    def advance(self, until: Callable[[], bool], *, before: float | None = None) -> bool:
        """Run callbacks until `until()` holds, asked after each; False when `before` came first.

        Raises Deadlock or Livelock, and whatever a plain callback raised.
        """
        asyncio._set_running_loop(self)
        self._running = True
        try:
            while not until():
                if not self._turn(before):
                    return False
                if self.failures:
                    raise self.failures[0]
            return True
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _turn(self, before: float | None) -> bool:
        """Run one callback, moving time if nothing is ready. False when `before` was reached."""
        if not self._batch:
            if not self._ready and not self._move_time(before):
                return False
            self._batch, self._ready = self._ready, []
            if len(self._batch) > 1:
                self._rng.shuffle(self._batch)
        handle = self._batch.pop()
        self._spins += 1
        if self._spins > SPIN_MAX:
            raise Livelock(f"{SPIN_MAX} callbacks at t={self._now:.3f}; {self.report()}")
        if not handle.cancelled():
            handle._run()
        return True

    def _move_time(self, before: float | None) -> bool:
        while self._timers and self._timers[0][3].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock(f"nothing is ready and no timer is set; {self.report()}")
        when = self._timers[0][0]
        if before is not None and when > before:
            self._now = max(self._now, before)
            return False
        self._now = max(self._now, when)
        self._spins = 0
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[3])
        return True

    def report(self) -> str:
        """The unfinished tasks by name, for error messages."""
        names = sorted(task.get_name() for task in self.tasks())
        return "unfinished tasks: " + (", ".join(names) or "none")

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Unfinished tasks of this loop."""
        return [task for task in asyncio.all_tasks(self) if not task.done()]

    # ------------------------------------------------------------------ AbstractEventLoop

    def time(self) -> float:
        return self._now

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # Timers of one instant fire in drawn order; the serial keeps the heap total.
        heapq.heappush(self._timers, (when, self._rng.random(), self._next(), handle))
        return handle

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        future: SimFuture[Any] = SimFuture(loop=self)
        future.serial = self._next()
        return future

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        serial = self._next()
        task = SimTask(coro, loop=self, name=name or f"task-{serial}", context=context)
        task.serial = serial
        return task

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        """Debug mode reads the wall clock; it stays off."""

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def get_task_factory(self) -> None:
        return None

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, BaseException) and not self._closed:
            self.failures.append(error)

    async def shutdown_asyncgens(self) -> None:
        """Asynchronous generators end with the loop."""

    def close(self) -> None:
        """Forget every callback, and end what is suspended without letting it go on."""
        if self._closed:
            return
        self._closed = True
        self._ready.clear()
        self._batch.clear()
        self._timers.clear()
        for task in self.tasks():
            bury(task)


def make_loop(rng: random.Random, *, start: float = 0.0) -> SimLoop:
    """A loop. What it lacks raises NotImplementedError, as asyncio's base class does."""
    return SimLoop(rng, start=start)  # type: ignore[abstract]


def bury(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task that will never run again; what it raises is of no interest."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    for _ in range(8):  # each `await` in a `finally` block costs one attempt
        try:
            coroutine.close()
        except BaseException:  # boundary: a dead life's cleanup code meets a dead world
            continue
        return
