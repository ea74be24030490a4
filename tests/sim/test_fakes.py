"""The fakes of the simulator pass the contract suites of their ports."""

from __future__ import annotations

import random
from collections.abc import Coroutine, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from outlast.durable.files import PosixFiles
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex
from outlast.ports import TrainGroup
from outlast.rows import Row
from outlast.testing.fake_engine import FakeEngine
from outlast.testing.fake_environment import FakeEnvironment, FakePrompts
from outlast.testing.fake_trainer import FakeTrainer
from outlast.testing.loop import SimLoop
from tests.contracts.engine_contract import EngineContract, EngineSubject
from tests.contracts.environment_contract import check_environment
from tests.contracts.prompts_contract import check_prompts
from tests.contracts.trainer_contract import TrainerContract, TrainerSubject


def drive(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on the simulated loop."""
    loop = SimLoop(random.Random(1))
    task = loop.create_task(work)
    loop.advance(task.done)
    task.result()


class TestFakeEngine(EngineContract):
    def make(self) -> EngineSubject:
        prompt = np.array([1, 2, 3], np.int32)
        return EngineSubject(engine=FakeEngine(seed=3), payload=lambda version: "w", prompt=prompt)

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        drive(work)


class DictPlane:
    """Just enough of a plane for a trainer: rows by key."""

    def __init__(self) -> None:
        self.rows: dict[AttemptKey, Row] = {}

    async def get(self, keys: Sequence[AttemptKey], /) -> tuple[Row, ...]:
        return tuple(self.rows[key] for key in keys)


class TestFakeTrainer(TrainerContract):
    def make(self) -> TrainerSubject:
        plane, files = DictPlane(), PosixFiles()

        def groups(step: int, *, silent: bool = False) -> list[TrainGroup]:
            return [_group(plane, step * 10 + n, silent=silent) for n in range(4)]

        return TrainerSubject(
            make=lambda: FakeTrainer(plane, files),  # type: ignore[arg-type]
            groups=groups,
            silent_groups=lambda step: groups(step, silent=True),
            fingerprint=str,
        )

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        drive(work)


def _group(plane: DictPlane, number: int, *, silent: bool) -> TrainGroup:
    keys = []
    for sibling in range(2):
        key = AttemptKey(GroupId(number), SiblingIndex(sibling), Incarnation(1), 0)
        ids = np.array([number, sibling], np.int32)
        plane.rows[key] = Row(
            key=key,
            prompt_ids=ids,
            response_ids=ids,
            logprobs=np.full(2, -0.5, np.float32),
            weight_versions=np.zeros(2, np.int32),
            loss_mask=np.ones(2, np.bool_),
            reward=0.0,
            mask_sample=False,
        )
        keys.append(key)
    rewards = (1.0, 1.0) if silent else (1.0, 0.25 * (number % 3))
    return TrainGroup(id=GroupId(number), keys=tuple(keys), rewards=rewards, keep=(True, True))


def test_fake_environment_keeps_the_contract() -> None:
    check_environment(FakeEnvironment, item=FakePrompts(5).item(3), ids=[5, 6, 7])


def test_fake_prompts_keep_the_contract() -> None:
    check_prompts(lambda: FakePrompts(7, unreadable=frozenset({2})))


def test_checkpoint_of_the_fake_trainer_is_on_disk(tmp_path: Path) -> None:
    async def work() -> None:
        plane = DictPlane()
        trainer = FakeTrainer(plane, PosixFiles())  # type: ignore[arg-type]
        await (await trainer.stage()).write(tmp_path)

    drive(work())
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"state.json", "optimizer.bin"}
    assert PurePosixPath(tmp_path / "state.json").name == "state.json"
