"""Calls reward functions without trusting them: deadline, threads, and one named boundary.

Whatever a user's reward does wrong (an exception, a time-out, NaN) is a DataFailure of this prompt
and never a crash; cancellation of the rollout passes. A call that overruns its deadline cannot be
stopped: its daemon thread is left behind and does not delay the exit of the process.
May import: `rewards`, `ports`, `errors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from outlast.adapters.environments.rewards import Reward
from outlast.errors import DataFailure, RolloutFailure
from outlast.ports import PromptItem

T = TypeVar("T")
REWARD_THREADS = 16
"""Blocking rewards of one environment that run at once; more wait, outside their deadline."""


class RewardCaller:
    """Calls one reward function for an environment; used from one event loop at a time."""

    def __init__(self, reward: Reward, *, timeout_s: float) -> None:
        self.reward = reward
        self.timeout_s = timeout_s
        self._slots = asyncio.Semaphore(REWARD_THREADS)

    async def __call__(self, response: str, item: PromptItem) -> float:
        """The raw reward, a finite float. Raises DataFailure naming the function and prompt."""
        what = f"reward {self.reward.name} on prompt {_short(item)}"
        try:
            value = float(await self._value(response, item.fields))
        except RolloutFailure:
            raise  # the function says itself which kind of failure it is
        except TimeoutError as error:
            raise DataFailure(
                f"{what} took longer than environment.reward_timeout_s ({self.timeout_s} s) or "
                f"timed out by itself {error}".rstrip()
            ) from error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the rollout is cancelled
            raise DataFailure(f"{what} cancelled itself") from error
        except (Exception, SystemExit) as error:  # boundary: user code may raise anything
            raise DataFailure(f"{what} failed: {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise DataFailure(f"{what} returned {value}; a finite number is required")
        return value

    async def _value(self, response: str, fields: Mapping[str, object]) -> Any:
        function = self.reward.function
        if not self.reward.blocking:
            return function(response, fields)
        async with self._slots, asyncio.timeout(self.timeout_s):
            found = await in_thread(lambda: function(response, fields))
            return await found if inspect.isawaitable(found) else found


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in a daemon thread of its own and return or raise what it does."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # boundary: reward thread; the caller raises it
            errors.append(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="reward", daemon=True).start()
    await done.wait()
    if errors:
        raise errors[0]
    return results[0]


def _short(item: PromptItem) -> str:
    text = repr(item.text if item.text is not None else [dict(m) for m in item.messages])
    return text if len(text) <= 120 else f"{text[:117]}..."
