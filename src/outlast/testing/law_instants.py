"""The part of the auditor that holds its state and judges the laws that hold at every instant.

S4, S5 and S6 in O(groups) whenever something changed, and L2. May import: `model`,
`runtime.board`, `testing.shadow`, `testing.law_terms`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from outlast.runtime.board import Board
from outlast.testing.law_terms import (
    RECENT_CUTS,
    STEPPED,
    Bounds,
    EngineState,
    LawBroken,
    Tally,
)
from outlast.testing.shadow import Shadow
from outlast.testing.world import Pulse


class InstantLaws:
    """Wiring of the auditor, and the laws that hold at every instant."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.shadow = Shadow()
        self.tally = Tally()
        self.broken: LawBroken | None = None
        self.acknowledged: dict[int, str] = {}
        """Sequence -> name of every acknowledged cut that still counts, by sequence."""
        self.newest_acknowledged = 0
        self.rows: dict[str, str] = {}
        """Attempt key -> digest of the row the plane stored."""
        self._frozen: dict[int, Shadow] = {0: Shadow()}
        self._frozen_versions: dict[int, tuple[int, int]] = {}
        """Sequence -> (durable version, trainer version) at the instant of the cut."""
        self._durable = 0
        """Version of the newest durable trainer checkpoint of this life."""
        self._pulse = Pulse()
        self._life = 0
        self._board: Board | None = None
        self._attempts: dict[tuple[int, int], str] = {}
        self._stepped: tuple[int, tuple[int, ...]] | None = None
        self._replay_at: int | None = None
        """The step that must be executed again next."""
        self._engine_due = False
        self.lineage: dict[int, int] = {}
        """Sequence -> life, of every cut taken along the surviving lineage."""
        self._loaded: tuple[int, str] | None = None
        self._engine: EngineState = lambda: (None, "", ())
        self._tasks: Callable[[], set[str]] = set
        self._mutations = -1
        self._eligible_since: float | None = None
        self._saved_mutations = -1
        self._frozen_mutations: dict[int, int] = {}
        self._ready = self.restored = False
        self._acknowledged_before = 0
        self._silent: set[int] = set()
        self._rows_recent: deque[int] = deque((0,), maxlen=RECENT_CUTS)
        self.faulty = False
        """Set by the driver while scripted faults hold snapshots up (L2 does not apply)."""

    # --------------------------------------------------------------------------------- wiring

    def begin(
        self,
        life: int,
        pulse: Pulse,
        *,
        engine: EngineState,
        bounds: Bounds,
        tasks: Callable[[], set[str]],
    ) -> None:
        """A new life starts on what the last one left; nothing is known to be restored yet."""
        self._life, self._pulse, self._engine, self.bounds = life, pulse, engine, bounds
        self._tasks = tasks
        self._board, self._mutations, self._eligible_since = None, -1, None
        self._attempts.clear()
        self._stepped = self._loaded = None
        self._replay_at, self._engine_due = None, False
        self._ready = self.restored = False
        self._acknowledged_before = self.newest_acknowledged
        self._saved_mutations = -1
        self._frozen_mutations.clear()
        self._silent.clear()

    def watch(self, board: Board) -> None:
        """The board of this life exists: from now on its state is checked."""
        self._board = board

    def require(self, condition: bool, message: str) -> None:
        """Note the first broken law; the driver raises it, so that no handler can swallow it."""
        self.tally.checks += 1
        if not condition and self.broken is None:
            self.broken = LawBroken(message)

    # ----------------------------------------------------------------------- after each callback

    def turn(self, now: float) -> None:
        """Check the laws that hold at every instant; O(groups) when something changed."""
        board = self._board
        if board is None or not self._ready or not self._pulse.alive:
            return
        state = board.state
        if state.mutations != self._mutations:
            self._mutations = state.mutations
            self._check_state(board)
        self._check_snapshot_due(board, now)

    def _check_state(self, board: Board) -> None:
        state, shadow = board.state, self.shadow
        try:
            state.check()
        except AssertionError:
            raise
        except Exception as error:  # boundary: the model's own check found a contradiction
            self.require(False, f"S5: {error}")
        groups = state.ledger.groups
        unsettled = {int(g) for g, group in groups.items() if group.state not in STEPPED}
        gone = shadow.live.keys() - unsettled
        for group in gone:
            end_of_data = state.drained and group in shadow.committed
            if not end_of_data:
                self._silent.add(group)  # only a run that is about to stop leaves one unannounced
            shadow.settle(group)
            shadow.dropped[group] = "end_of_data" if end_of_data else "unannounced"
        self.require(
            shadow.live.keys() == unsettled,
            f"S6: live groups are {sorted(shadow.live)}, the ledger holds {sorted(unsettled)}",
        )
        permits = state.ledger.permits
        self.require(
            permits.free == permits.capacity - len(shadow.live),
            f"S5: capacity {permits.capacity}, {len(shadow.live)} groups live, {permits.free} free",
        )
        dropped = sum(state.ledger.settled.dropped.values())
        self.require(
            dropped == len(shadow.dropped),
            f"S4: {len(shadow.dropped)} groups were dropped, {dropped} are counted",
        )

    def _check_snapshot_due(self, board: Board, now: float) -> None:
        """L2: a snapshot within two intervals while nothing stands against it."""
        interval = self.bounds.interval_s
        eligible = (
            interval is not None
            and not self.faulty
            and board.stopping is None
            and not board.training_done
            and (self.bounds.replay or board.state.version == board.anchor.version)
            and board.state.mutations != self._saved_mutations
        )
        if not eligible:
            self._eligible_since = None
        elif self._eligible_since is None:
            self._eligible_since = now
        elif interval is not None:
            late = now - self._eligible_since - 2 * interval - self.bounds.save_slack_s
            # A snapshot pump that has failed ends the run, and that may take a while.
            due = late > 0 and "snapshot" in self._tasks()
            self.require(not due, f"L2: no snapshot for {late:.1f} s longer than two intervals")
