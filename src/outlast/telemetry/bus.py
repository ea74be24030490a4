"""The bus: one `emit`, any number of sinks, and a sink that fails is silenced, not fatal.

May import: `telemetry.events`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from outlast.telemetry.events import AnyEvent
from outlast.world import Clock

logger = logging.getLogger("outlast.telemetry")


class Sink(Protocol):
    """A view of the stream. Called on the event loop: must be quick and must not block."""

    def __call__(self, event: AnyEvent, wall: float, /) -> None: ...


class Bus:
    """Passes each event to every sink in order of registration."""

    def __init__(self, clock: Clock, *sinks: Sink) -> None:
        self._clock = clock
        self._sinks = list(sinks)

    def add(self, sink: Sink) -> Callable[[], None]:
        """Register a sink; the returned call removes it."""
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink)

    def clear(self) -> None:
        """Nobody listens any more."""
        self._sinks.clear()

    def emit(self, event: AnyEvent) -> None:
        """Show the event to every sink. Never raises."""
        wall = self._clock.wall()
        for sink in tuple(self._sinks):
            try:
                sink(event, wall)
            except Exception:  # boundary: telemetry sink; observation never changes semantics
                self._sinks.remove(sink)
                logger.exception("telemetry sink %r failed and is switched off", sink)
