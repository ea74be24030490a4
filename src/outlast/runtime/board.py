"""The board: what the pumps share, so that no pump needs to know another.

It holds the recovery state, the acknowledged weights, the stop request, one signal that says
"something changed", and the list of who waits for what (L4). Every wait of a pump goes through
`until`, which makes the list complete by construction.
May import: `model`, `telemetry`, `world`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from outlast.model.cut import Anchor
from outlast.model.groups import GroupState
from outlast.model.ids import AttemptKey, TrainerVersion, WeightVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.state import RecoveryState
from outlast.runtime.prefixes import Frozen, FrozenPrefix, Prefix, PrefixBook
from outlast.telemetry.bus import Bus
from outlast.world import World


class Signal:
    """Broadcast: `notify` wakes everyone who waits now, and nobody who comes later."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)


@dataclass(slots=True)
class InFlight:
    """What one attempt has received so far, and when it started (monotonic seconds)."""

    started: float
    prefix: Prefix | None = None
    """Grows while the attempt decodes; None where the recovery level does not keep it."""
    tokens: int = 0
    """Decoded by this attempt; inherited ones are not counted."""

    @property
    def at_risk(self) -> int:
        """Tokens that no published cut holds."""
        return self.tokens if self.prefix is None else self.prefix.tokens - self.prefix.saved


@dataclass(slots=True, kw_only=True)
class Board:
    """Shared state of one incarnation. Fields change only in synchronous sections."""

    world: World
    bus: Bus
    state: RecoveryState
    anchor: Anchor
    """The newest durable trainer state of this lineage."""
    parent: CutSequence | None
    """The newest cut of this lineage that is published (or was restored)."""
    next_sequence: CutSequence
    served: WeightVersion | None = None
    """Acknowledged by every serving engine."""
    stopping: str | None = None
    """Why the run winds down; set once."""
    training_done: bool = False
    """The train pump has reached its target or the end of the data."""
    last_snapshot: float | None = None
    """Monotonic time of the newest published cut's instant."""
    generated_tokens: int = 0
    prefix_tokens: int = 0
    """Generated tokens that were recorded in a prefix; only ever grows."""
    changed: Signal = field(default_factory=Signal)
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    inflight: dict[AttemptKey, InFlight] = field(default_factory=dict)
    prefixes: PrefixBook = field(default_factory=PrefixBook)
    """Tokens of attempts that ended, waiting for the next attempt of their sibling."""
    sealed_since_cut: dict[AttemptKey, int] = field(default_factory=dict)
    """Tokens of rows sealed after the newest published cut."""
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The serial lane of snapshots and checkpoints."""
    weights_gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while weights change, and by a validation that pins a version."""
    _waiting: dict[str, str] = field(default_factory=dict)
    _orphans: list[AttemptKey] = field(default_factory=list)

    @property
    def acknowledged(self) -> TrainerVersion:
        """The trainer version that every engine serves."""
        if self.served is None:
            return TrainerVersion(0)
        return self.served.version

    def take_sequence(self) -> CutSequence:
        """A new cut sequence; a failed save burns its number."""
        sequence = self.next_sequence
        self.next_sequence = CutSequence(sequence + 1)
        return sequence

    def request_stop(self, reason: str) -> None:
        """Ask every pump to come to rest. The first reason stands."""
        if self.stopping is None:
            self.stopping = reason
        self._stopped.set()
        self.changed.notify()

    def saved(self, *, at: float, sealed: frozenset[AttemptKey], prefixes: Frozen) -> None:
        """A cut taken at `at` was acknowledged: what it holds would survive a kill."""
        self.last_snapshot = max(at, self.last_snapshot or at)
        for prefix in prefixes.values():
            prefix.published()
        for key in sealed & self.sealed_since_cut.keys():
            del self.sealed_since_cut[key]

    def frozen_prefixes(self) -> dict[AttemptKey, FrozenPrefix]:
        """The tokens that unsealed siblings have received so far, in flight or waiting."""
        growing = {
            key: flight.prefix
            for key, flight in self.inflight.items()
            if flight.prefix is not None and flight.prefix.tokens
        }
        groups = self.state.ledger.groups
        for (group, sibling), prefix in self.prefixes.waiting():
            if group in groups:
                growing[groups[group].siblings[sibling].attempt.key] = prefix
        return {
            key: FrozenPrefix.of(prefix)
            for key, prefix in growing.items()
            if key.group in groups and not groups[key.group].siblings[key.sibling].sealed
        }

    async def sleep(self, seconds: float) -> bool:
        """Sleep, or less when the life ends; True when the whole time passed."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopped.wait()
        except TimeoutError:
            return True
        return False

    @property
    def over(self) -> bool:
        """Training is done or a stop is requested: pumps come to rest."""
        return self.training_done or self.stopping is not None

    def finish_training(self) -> None:
        """The target is reached or the data has ended."""
        self.training_done = True
        self._stopped.set()
        self.changed.notify()

    async def until(self, who: str, what: str, *, condition: Callable[[], bool]) -> bool:
        """Wait for `condition` or for the end of the life; True when the condition holds.

        The condition is checked after every change, in the same synchronous section in which the
        caller then acts.
        """
        while not condition():
            if self.over:
                return False
            await self.waiting(who, what)
        return True

    async def waiting(self, who: str, what: str) -> None:
        """Wait for any change, on the record."""
        with self.on_record(who, what):
            await self.changed.wait()

    @contextlib.contextmanager
    def on_record(self, who: str, what: str) -> Iterator[None]:
        """What `who` awaits inside is listed in stall reports."""
        self._waiting[who] = what
        try:
            yield
        finally:
            self._waiting.pop(who, None)

    def waits(self) -> tuple[tuple[str, str], ...]:
        """(pump, what it waits for), for stall and deadlock reports."""
        return tuple(sorted(self._waiting.items()))

    def orphan(self, keys: Sequence[AttemptKey]) -> None:
        """Hand over rows that nobody names; the rollout pump releases them."""
        self._orphans.extend(keys)
        self.changed.notify()

    def has_orphans(self) -> bool:
        """Whether `take_orphans` would return anything."""
        return bool(self._orphans) or self.state.ledger.has_released

    def take_orphans(self) -> tuple[AttemptKey, ...]:
        """Rows to release now: refused ones and those the ledger let go of."""
        orphans, self._orphans = tuple(self._orphans), []
        return orphans + self.state.ledger.take_released()

    @property
    def at_risk(self) -> tuple[int, float]:
        """(tokens, seconds of decoding) that a kill now would cost."""
        now = self.world.clock.monotonic()
        flying = sum(flight.at_risk for flight in self.inflight.values())
        tokens = sum(self.sealed_since_cut.values()) + flying
        oldest = min((flight.started for flight in self.inflight.values()), default=now)
        since = self.last_snapshot if self.last_snapshot is not None else oldest
        return tokens, max(0.0, now - min(oldest, since)) if tokens else 0.0

    def count(self, state: GroupState) -> int:
        """Unsettled groups in `state`."""
        return sum(1 for group in self.state.ledger.groups.values() if group.state is state)
