"""What is trained is the shaped reward with its keep flags, today and when it is replayed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from outlast.model.groups import Receipt
from outlast.ports import TrainGroup
from outlast.testing import FakeEnvironment, Simulation
from outlast.testing.fake_trainer import FakeTrainer


class Shaping(FakeEnvironment):
    """Needs the whole group: rewards are ranks, and the first sibling is left out."""

    def shape(self, receipts: Sequence[Receipt], /) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        rewards = tuple(10.0 + receipt.key.sibling for receipt in receipts)
        return rewards, tuple(receipt.key.sibling != 0 for receipt in receipts)


def test_S2_shaped_rewards_and_keep_flags_reach_the_trainer_in_every_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[TrainGroup] = []
    accumulate = FakeTrainer.accumulate

    async def watched(self: FakeTrainer, groups: Sequence[TrainGroup], /) -> None:
        seen.extend(groups)
        await accumulate(self, groups)

    monkeypatch.setattr(FakeTrainer, "accumulate", watched)
    sim = Simulation(
        prompts=12,
        siblings=3,
        groups_per_step=2,
        steps=5,
        seed=3,
        save_period=9,
        anchor_policy="replay",
        environment=Shaping(),
    )
    sim.run_until(step=3)
    sim.run_until(snapshots=1)
    sim.kill()
    before = len(seen)
    sim.resume()
    assert sim.run().how == "finished"
    assert len(seen) > before and {group.id for group in seen[before:]} >= {0, 1}, "replayed"
    for group in seen:
        assert [key.sibling for key in group.keys] == [0, 1, 2]
        assert group.rewards == (10.0, 11.0, 12.0)
        assert group.keep == (False, True, True)
