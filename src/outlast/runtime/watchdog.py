"""Watchdog: progress is (groups committed, steps finished, tokens); gauges on their own clock.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| the board | gauges, stall reports, abort (exit 69) | its own clock | - |

Law: L4. May import: `runtime.board`.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlast.errors import StallAbort
from outlast.model.groups import GroupState
from outlast.runtime.board import Board
from outlast.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogSettings:
    """Times in seconds; `abort` ends the run on a stall, otherwise it is only reported."""

    stall_timeout_s: float
    abort: bool
    gauge_interval_s: float


class Watchdog:
    """Reports who waits for what when nothing moves."""

    def __init__(self, board: Board, settings: WatchdogSettings) -> None:
        self._board = board
        self._settings = settings

    async def run(self) -> None:
        """Emit gauges until the life ends; raise StallAbort, or warn, on a stall."""
        clock = self._board.world.clock
        moved_at, seen = clock.monotonic(), self._progress()
        tokens, at = self._board.generated_tokens, moved_at
        while await self._board.sleep(self._settings.gauge_interval_s):
            now = clock.monotonic()
            rate = (self._board.generated_tokens - tokens) / max(1e-9, now - at)
            tokens, at = self._board.generated_tokens, now
            if rate:
                self._board.state.tokens_per_s = rate
            self._board.bus.emit(self._gauges(rate, now))
            if self._progress() != seen:
                moved_at, seen = now, self._progress()
            elif now - moved_at >= self._settings.stall_timeout_s:
                self._stalled(now - moved_at)
                moved_at = now

    def _progress(self) -> tuple[int, int, int]:
        """Tokens count, since one response may take hours; an attempt that goes round in circles
        ends by its own deadline, token limit and budget."""
        board = self._board
        return board.state.committed, board.state.version, board.generated_tokens

    def _stalled(self, seconds: float) -> None:
        waits = self._board.waits()
        self._board.bus.emit(events.Stalled(seconds=seconds, waiting=waits))
        if self._settings.abort:
            listed = "; ".join(f"{who} waits for {what}" for who, what in waits) or "nobody waits"
            raise StallAbort(
                f"no group committed, no step finished and no token decoded for {seconds:.0f} s "
                f"(stall_timeout_s): {listed}. The last snapshot stands; restart to continue"
            )

    def _gauges(self, rate: float, now: float) -> events.Gauges:
        board = self._board
        at_risk_tokens, at_risk_s = board.at_risk
        last = board.last_snapshot
        return events.Gauges(
            trainer_version=board.state.version,
            served_version=board.acknowledged,
            open_groups=board.count(GroupState.OPEN),
            buffered_groups=board.count(GroupState.BUFFERED),
            claimed_groups=board.count(GroupState.CLAIMED),
            inflight_siblings=len(board.inflight),
            tokens_per_s=rate,
            generated_tokens=board.generated_tokens,
            last_snapshot_age_s=None if last is None else now - last,
            at_risk_tokens=at_risk_tokens,
            at_risk_s=at_risk_s,
        )
