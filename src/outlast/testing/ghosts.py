"""Answers that come a second time, or from a life that is over: the ledger must refuse them (S3).

May import: `testing.life`, `testing.fake_engine`, `testing.laws`, `model`.
"""

from __future__ import annotations

import random

import msgspec

from outlast.model.groups import Receipt
from outlast.model.ids import Incarnation, TrainerVersion
from outlast.testing.fake_engine import FakeEngine, attempt_of
from outlast.testing.laws import Auditor
from outlast.testing.life import SimLife


class Ghosts:
    """Schedules duplicate and foreign results where the engine's script asks for them."""

    def __init__(self, engine: FakeEngine, auditor: Auditor, *, rng: random.Random) -> None:
        self._engine, self._auditor, self._rng = engine, auditor, rng

    def sealed(self, life: SimLife, key: str) -> None:
        """Deliver the result of a sealed attempt a second time, if its script says so."""
        attempt = attempt_of(f"{key}.t1")
        if attempt is None or not self._engine.answer(attempt).duplicate:
            return
        board = life.controller.board
        assert board is not None
        sibling = board.state.ledger.groups[attempt.group].siblings[attempt.sibling]
        if sibling.receipt is not None:
            life.loop.call_later(self._rng.random() * 6, self._deliver, life, sibling.receipt)

    def dispatched(self, life: SimLife, key: str) -> None:
        """Deliver an answer of an earlier life to a sibling that is being generated."""
        attempt = attempt_of(f"{key}.t1")
        if attempt is None or not self._engine.answer(attempt).foreign:
            return
        earlier = msgspec.structs.replace(attempt, incarnation=Incarnation(attempt.incarnation - 1))
        receipt = Receipt(
            key=earlier,
            digest="0" * 64,
            reward=1.0,
            prompt_tokens=1,
            response_tokens=1,
            min_version=TrainerVersion(0),
            max_version=TrainerVersion(0),
            truncated=False,
            mask_sample=False,
        )
        life.loop.call_later(self._rng.random(), self._deliver, life, receipt)

    def _deliver(self, life: SimLife, receipt: Receipt) -> None:
        if life.pulse.alive and not life.over:
            self._auditor.tally.outcomes[f"late_{life.deliver(receipt)}"] += 1
