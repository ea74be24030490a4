"""The simulated surroundings of one life: virtual clock, seeded off-loop work, marks, and death.

A life that is dead stays silent: every seam raises `Killed`, a BaseException, so that no `finally`
or `except` block of a killed controller touches the clock, the disk or an engine again (S9).
May import: `world`, `testing.loop`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from outlast.testing.loop import SimLoop
from outlast.world import Identity, World

P = ParamSpec("P")
R = TypeVar("R")

WALL_START = 1_700_000_000.0
"""What the wall clock of every simulation shows at the start."""


class Killed(BaseException):
    """The process is gone. Not an Exception: no handler of the controller may survive it."""


@dataclass(slots=True)
class Pulse:
    """Whether a life is alive. One object, asked by every seam of that life."""

    alive: bool = True
    cause: str = ""

    def check(self) -> None:
        """Raise Killed when the life has ended."""
        if not self.alive:
            raise Killed(self.cause)

    def kill(self, cause: str) -> None:
        """End the life; the first cause stands."""
        if self.alive:
            self.alive, self.cause = False, cause


class SimClock:
    """Virtual time of the loop; the wall clock runs in step with it."""

    def __init__(self, loop: SimLoop, pulse: Pulse) -> None:
        self._loop = loop
        self._pulse = pulse

    def monotonic(self) -> float:
        self._pulse.check()
        return self._loop.time()

    def wall(self) -> float:
        self._pulse.check()
        return WALL_START + self._loop.time()


@dataclass(slots=True)
class StoreSpeed:
    """How long off-loop work takes, in virtual seconds. Scripts change it while the run goes on."""

    typical_s: float = 0.01
    slow_s: float = 2.0
    slow_share: float = 0.0
    """Share of calls that take up to `slow_s`."""
    hang_s: float = 0.0
    """Extra time of every call: a store that hangs."""

    def draw(self, rng: random.Random) -> float:
        """Seconds of one call."""
        if self.slow_share and rng.random() < self.slow_share:
            return self.hang_s + rng.random() * self.slow_s
        return self.hang_s + rng.random() * self.typical_s


class SimOffload:
    """Runs work inline at a drawn moment of its drawn duration, whatever becomes of its caller."""

    def __init__(
        self, loop: SimLoop, pulse: Pulse, *, rng: random.Random, speed: StoreSpeed
    ) -> None:
        self._loop = loop
        self._pulse = pulse
        self._rng = rng
        self._speed = speed

    async def __call__(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        self._pulse.check()
        done: asyncio.Future[R] = self._loop.create_future()
        duration = self._speed.draw(self._rng)
        at = duration * self._rng.random()

        def run() -> None:
            if not self._pulse.alive:
                return
            try:
                result = work(*args, **kwargs)
            except Killed:
                return
            except BaseException as error:  # boundary: what the work raises belongs to its caller
                self._loop.call_later(duration - at, _fail, done, error)
            else:
                self._loop.call_later(duration - at, _give, done, result)

        self._loop.call_later(at, run)
        return await done


def _give(future: asyncio.Future[R], result: R) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[R], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


@dataclass(slots=True)
class Marks:
    """`perhaps`: counts every mark, and ends the life at the chosen one."""

    hits: Counter[str] = field(default_factory=Counter)
    kill_at: tuple[str, int] | None = None
    """(mark, n): die at the n-th hit of that mark, from 1; "" stands for any mark."""
    pulse: Pulse = field(default_factory=Pulse)
    _life: Counter[str] = field(default_factory=Counter)

    def begin(self, pulse: Pulse, *, kill_at: tuple[str, int] | None) -> None:
        """A new life: its own counts, the sums go on."""
        self.pulse, self.kill_at = pulse, kill_at
        self._life = Counter()

    def __call__(self, name: str, /) -> None:
        self.pulse.check()
        self.hits[name] += 1
        self._life[name] += 1
        self._life[""] += 1
        where, count = self.kill_at or (None, 0)
        if where in (name, "") and self._life[where or ""] == count:
            self.pulse.kill(f"killed at {name}, hit {self._life[name]}")
            self.pulse.check()


def sim_world(
    loop: SimLoop, pulse: Pulse, *, rng: random.Random, speed: StoreSpeed, marks: Marks
) -> World:
    """A `World` for one life."""
    return World(
        clock=SimClock(loop, pulse),
        offload=SimOffload(loop, pulse, rng=random.Random(rng.random()), speed=speed),
        random=random.Random(rng.random()),
        identity=Identity(host="sim", pid=1),
        perhaps=marks,
    )
