"""Weights pump: engines follow the trainer, and admission follows what engines acknowledge.

| consumes | produces | waits for | unblocked by |
|---|---|---|---|
| new trainer versions | engines at that version | engine acknowledgement | train |

Laws: S8 (admission uses the acknowledged pair), L4. A push is never skipped because versions look
equal: only an equal (incarnation, version) pair counts. May import: `ports`, `runtime.board`.
"""

from __future__ import annotations

from outlast.errors import InvariantError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationEngine, Trainer
from outlast.runtime.board import Board
from outlast.telemetry import events


class WeightsPump:
    """Pushes the newest version; intermediate ones may be passed over."""

    def __init__(self, board: Board, *, trainer: Trainer, engine: GenerationEngine) -> None:
        self._board = board
        self._trainer = trainer
        self._engine = engine

    async def run(self) -> None:
        """Keep the engine at the trainer's version until the life ends."""
        board = self._board
        while await board.until("weights", "a new trainer version", condition=self._behind):
            await self.push()

    async def catch_up(self) -> None:
        """Push unless the engine serves the trainer's version already."""
        if self._behind():
            await self.push()

    async def push(self) -> None:
        """Bring the engine to the trainer's version, whatever it serves now."""
        board = self._board
        async with board.weights_gate:
            began = board.world.clock.monotonic()
            board.world.perhaps("weights.before_push")
            weights = await self._trainer.weights(self._incarnation)
            with board.on_record("weights", f"engines to acknowledge {weights.version}"):
                acknowledged = await self._engine.update_weights(weights)
            board.world.perhaps("weights.pushed")
            if acknowledged != weights.version:
                raise InvariantError(
                    f"the engine acknowledged {acknowledged} for a push of {weights.version}"
                )
            board.served = acknowledged
        seconds = board.world.clock.monotonic() - began
        board.bus.emit(events.WeightsServed(version=acknowledged.version, seconds=seconds))
        board.changed.notify()

    @property
    def _incarnation(self) -> Incarnation:
        return self._board.state.incarnation

    def _behind(self) -> bool:
        current = WeightVersion(incarnation=self._incarnation, version=self._board.state.version)
        return self._board.served != current
