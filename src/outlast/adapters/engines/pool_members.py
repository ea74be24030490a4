"""The members of a pool: started, probed, taken out when they die, and made again.

| loop   | consumes     | produces         | waits for          | unblocked by |
|--------|--------------|------------------|--------------------|--------------|
| probes | the clock    | dead members     | an answer, bounded | member       |
| mender | a dead place | a serving member | a start, bounded   | member       |

A member serves only at the version that was acknowledged last (S8): one that misses an update, or
comes back, loads it before it serves. May import: `ports`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from outlast.errors import InfrastructureFailure, OutlastError, StallAbort
from outlast.model.ids import Incarnation
from outlast.ports import GenerationEngine, TokenChunk, Weights

R = TypeVar("R")
MEND_FIRST_S = 1.0
MEND_MAX_S = 30.0
"""Back-off between two tries to make an engine again."""
CLOSE_MAX_S = 10.0

Item = TokenChunk | OutlastError
Stream = asyncio.Queue[Item]
"""What one request in one member has brought and nobody has read yet."""
LOST = (InfrastructureFailure, TimeoutError, OSError)
"""What makes a member unusable, and not the run."""


@dataclass(eq=False, slots=True)
class Place:
    """One place of the pool. `engine` is None while it is being made again."""

    number: int
    engine: GenerationEngine | None
    serving: bool = False
    streams: set[Stream] = field(default_factory=set)

    def tell(self, cause: OutlastError) -> None:
        """End every stream of the place."""
        for stream in tuple(self.streams):
            stream.put_nowait(cause)


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How long is too long, and how few too few. Durations in seconds."""

    min_healthy: int
    interval_s: float
    timeout_s: float
    start_timeout_s: float


class Members:
    """`count` places, each with an engine that `make(number)` gave, most of the time."""

    def __init__(
        self,
        make: Callable[[int], GenerationEngine],
        *,
        count: int,
        health: Health,
        on_warning: Callable[[str], None],
    ) -> None:
        self._make = make
        self._health = health
        self._warn = on_warning
        self.places = [Place(number, make(number)) for number in range(count)]
        self.continues_prefixes = all(p.engine.continues_prefixes for p in self.places if p.engine)
        self.fenced_to: Incarnation | None = None
        self.weights: Weights | None = None
        self.fatal: OutlastError | None = None
        """Why the pool will never serve again."""
        self.closing = False
        self._updating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._short_since: float | None = None

    @property
    def healthy(self) -> int:
        """Members that live, whether they serve already or not."""
        return sum(place.engine is not None for place in self.places)

    @property
    def serving(self) -> list[Place]:
        """Places that take requests."""
        return [place for place in self.places if place.serving]

    # --------------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Start all at once. Raises the first failure when too few come up."""
        causes = await asyncio.gather(*(self._started(place) for place in self.places))
        if self.healthy < self._health.min_healthy:
            await self.close()
            raise next(cause for cause in causes if cause is not None)
        self._spawn(self._probes())

    async def _started(self, place: Place) -> BaseException | None:
        assert place.engine is not None
        try:
            await self._begun(place.engine, f"the start of engine {place.number}")
        except LOST as error:
            self.fell(place, error)
            return error
        return None

    async def close(self) -> None:
        """End every member, waiting a bounded time for each. Idempotent."""
        self.closing = True
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_MAX_S)
        engines = [place.engine for place in self.places if place.engine is not None]
        for place in self.places:
            place.tell(InfrastructureFailure("the pool of engines was closed"))
        await asyncio.gather(*(_ended(engine) for engine in engines))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begun(self, engine: GenerationEngine, what: str) -> None:
        """Start an engine; models take longer to load than to answer."""
        await _within(self._health.start_timeout_s, engine.start(), what=what)

    async def bounded(self, work: Awaitable[R], what: str) -> R:
        """Await `work`. Raises InfrastructureFailure when it takes too long."""
        return await _within(self._health.timeout_s, work, what=what)

    async def change(self, until: float) -> bool:
        """Wait until something about the members changes; False when `until` came first."""
        try:
            async with asyncio.timeout_at(until):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def deadline(self) -> float:
        """Of whoever begins to wait for members now, in the loop's time."""
        return asyncio.get_running_loop().time() + self._health.timeout_s

    def notify(self) -> None:
        """Wake everybody who waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    # ------------------------------------------------------------------- fence and weights

    async def fence(self, incarnation: Incarnation) -> None:
        """Every living member refuses other incarnations when this returns."""
        self.fenced_to = incarnation
        await asyncio.gather(*(self._fenced(place, incarnation) for place in self.places))

    async def _fenced(self, place: Place, incarnation: Incarnation) -> None:
        engine = place.engine
        if engine is not None:
            try:
                await self.bounded(engine.fence(incarnation), f"fence of engine {place.number}")
            except LOST as error:
                self.fell(place, error, engine=engine)

    async def load(self, weights: Weights) -> None:
        """Every living member loads; one that fails is taken out, not waited for."""
        async with self._updating:
            self.weights = weights
            await asyncio.gather(*(self._loaded(place, weights) for place in self.places))

    async def _loaded(self, place: Place, weights: Weights) -> None:
        engine = place.engine
        if engine is None:
            return
        what = f"weights {weights.version}, engine {place.number}"
        try:
            await self.bounded(engine.update_weights(weights), what)
        except LOST as error:
            self.fell(place, error, engine=engine)
        else:
            place.serving = place.engine is engine
            self.notify()

    # ------------------------------------------------------------------------------- health

    async def lost(self, place: Place, cause: InfrastructureFailure) -> bool:
        """Whether a failed stream means that its member is dead; then it is taken out."""
        engine = place.engine
        if self.closing or engine is None:
            return not self.closing
        if await self._answers(place, engine):
            return False
        self.fell(place, cause, engine=engine)
        return True

    async def _answers(self, place: Place, engine: GenerationEngine) -> bool:
        """Whether the member lives. One that cannot be asked is dead once a stream has failed."""
        ping = getattr(engine, "ping", None)
        if ping is None:
            return False
        try:
            await self.bounded(ping(), f"probe of engine {place.number}")
        except LOST:
            return False
        return True

    async def _probes(self) -> None:
        """Ask every member in turn for its health, and watch that enough of them live."""
        while True:
            await asyncio.sleep(self._health.interval_s)
            await asyncio.gather(*(self._probe(place) for place in self.places))
            self._judge()

    async def _probe(self, place: Place) -> None:
        engine = place.engine
        if engine is None or getattr(engine, "ping", None) is None:
            return
        if not await self._answers(place, engine):
            silent = InfrastructureFailure("it does not answer its probe")
            self.fell(place, silent, engine=engine)

    def _judge(self) -> None:
        """Give the run up once too few members have lived for too long."""
        now, health = asyncio.get_running_loop().time(), self._health
        if self.healthy >= health.min_healthy:
            self._short_since = None
            return
        self._short_since = self._short_since or now
        if now - self._short_since >= health.timeout_s and self.fatal is None:
            self.fatal = StallAbort(
                f"{self.healthy} of {len(self.places)} engines alive for {health.timeout_s:g} s, "
                f"generation.min_healthy_engines is {health.min_healthy}; see the warnings for "
                "the cause, then run the same command again"
            )
            for place in self.places:
                place.tell(self.fatal)
            self.notify()

    def fell(
        self, place: Place, cause: BaseException, *, engine: GenerationEngine | None = None
    ) -> None:
        """Take a member out (if it is still `engine`); its place is filled again."""
        lost = place.engine
        if lost is None or engine not in (None, lost):
            return
        place.engine, place.serving = None, False
        place.tell(InfrastructureFailure(f"engine {place.number} is lost: {cause}"))
        self.notify()
        if not self.closing:
            self._warn(f"engine {place.number} is lost, and made again: {cause}")
            self._spawn(self._mend(place, lost))

    async def _mend(self, place: Place, lost: GenerationEngine) -> None:
        """Make the engine of a place again, for as long as it takes."""
        await _ended(lost)
        pause = MEND_FIRST_S
        while not await self._mended(place):
            await asyncio.sleep(pause)
            pause = min(2 * pause, MEND_MAX_S)

    async def _mended(self, place: Place) -> bool:
        engine = self._make(place.number)
        try:
            await self._begun(engine, f"restart of engine {place.number}")
            await self._rejoin(place, engine)
        except (OutlastError, *LOST) as error:  # a refusal too: the other members go on
            self._warn(f"engine {place.number} did not come back: {error}")
        finally:
            if place.engine is not engine:
                await _ended(engine)
        return place.engine is engine

    async def _rejoin(self, place: Place, engine: GenerationEngine) -> None:
        """Fence and weights first; under the lock, so that no update passes in between."""
        async with self._updating:
            if self.fenced_to is not None:
                what = f"fence of engine {place.number}"
                await self.bounded(engine.fence(self.fenced_to), what)
            if self.weights is not None:
                what = f"weights of engine {place.number}"
                await self.bounded(engine.update_weights(self.weights), what)
            place.engine, place.serving = engine, self.weights is not None
        self.notify()


async def _within(seconds: float, work: Awaitable[R], *, what: str) -> R:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise InfrastructureFailure(f"{what}: no answer in {seconds:g} s") from error


async def _ended(engine: GenerationEngine) -> None:
    with contextlib.suppress(*LOST):
        await asyncio.wait_for(engine.close(), CLOSE_MAX_S)
