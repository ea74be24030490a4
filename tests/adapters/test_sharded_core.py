"""The ranks of a sharded trainer, as plain processes: same step as the embedded trainer's."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from outlast.adapters.trainers.sharded_core import ShardedCore
from outlast.adapters.trainers.sharded_group import Ranks
from outlast.adapters.trainers.sharded_plan import shares
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.model.ids import AttemptKey, Step, TrainerVersion
from outlast.ports import TrainGroup
from outlast.rows import Row
from tests.adapters.models import DictPlane, random_groups
from tests.adapters.sharded_ranks import RankPool

START = TrainerVersion(0)


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    pool = RankPool(3)
    yield pool
    pool.close()


@dataclass(frozen=True)
class Job:
    """What a trainer is made of and what it does, for any number of ranks."""

    directory: Path
    chunk: int = 4
    steps: int = 1
    groups: int = 4
    silent: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def sections(self) -> dict[str, Any]:
        options = dict(self.options)
        training = {k: options.pop(k) for k in list(options) if k in TrainingSection.model_fields}
        return {
            "directory": self.directory,
            "deterministic": options.pop("deterministic", False),
            "algorithm": AlgorithmSection(**options),
            "training": TrainingSection(**{"micro_batch_size": 3, **training}),
            "temperature": 0.8,
        }

    def chunks(self, plane: DictPlane, step: int) -> list[Sequence[TrainGroup]]:
        groups = random_groups(plane, step, groups=self.groups, silent=self.silent)
        return [groups[at : at + self.chunk] for at in range(0, len(groups), self.chunk)]


@dataclass(frozen=True)
class Outcome:
    metrics: list[Mapping[str, float]]
    gradients: dict[str, Tensor]
    weights: dict[str, Tensor]
    digest: str


def share_of(plane: DictPlane, groups: Sequence[TrainGroup], ranks: Ranks) -> dict[AttemptKey, Row]:
    keys = [key for group in groups for key in group.keys]
    lengths = [len(plane.rows[k].prompt_ids) + len(plane.rows[k].response_ids) for k in keys]
    return {keys[at]: plane.rows[keys[at]] for at in shares(lengths, ranks.size)[ranks.rank]}


def embedded(job: Job) -> Outcome:
    core = TrainerCore(**job.sections())
    core.load(None, START)
    return _train(core, job, None)


def sharded(ranks: Ranks, job: Job) -> Outcome:
    core = ShardedCore(**job.sections(), ranks=ranks)
    core.load(None, START)
    return _train(core, job, ranks)


def _train(core: TrainerCore, job: Job, ranks: Ranks | None) -> Outcome:
    plane, metrics = DictPlane(), []
    for step in range(core.version + 1, core.version + 1 + job.steps):
        core.begin(Step(step))
        for groups in job.chunks(plane, step):
            rows = plane.rows if ranks is None else share_of(plane, groups, ranks)
            core.accumulate(groups, rows, abandoned=threading.Event())
        metrics.append(core.finish().metrics)
    gradients = {
        name: core._whole(parameter.grad).clone()
        for name, parameter in core._parameters.items()
        if parameter.grad is not None
    }
    return Outcome(metrics, gradients, core.weights(), core.digest())


def assert_close(observed: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert observed.keys() == expected.keys()
    for name, value in expected.items():
        error = (observed[name] - value).norm() / value.norm().clamp(min=1e-12)
        assert error < 1e-5, f"{name}: relative error {error}"


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_streamed_step_of_any_number_of_ranks_is_the_embedded_one(
    pool: RankPool, models: dict[str, Path], size: int, chunk: int
) -> None:
    """Gradients before the clip too: sums over ranks, divided by nothing but the normaliser."""
    job = Job(models["llama"], chunk=chunk, options={"grad_clip": 1e9})
    expected = embedded(Job(models["llama"], options={"grad_clip": 1e9}))
    outcomes = pool(size, sharded, job)
    for outcome in outcomes:
        assert_close(outcome.gradients, expected.gradients)
        assert_close(outcome.weights, expected.weights)
        close = pytest.approx(dict(expected.metrics[0]), rel=1e-5, abs=1e-7)
        assert dict(outcome.metrics[0]) == close
    assert len({outcome.digest for outcome in outcomes}) == 1


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt2", {}),
        ("untied", {"normalisation": "sequence", "weight_decay": 0.1}),
        ("llama", {"kl_coef": 0.1, "learning_rate": 1e-3}),
        ("llama", {"deterministic": True, "grad_clip": 0.01}),
    ],
)
def test_several_steps_stay_with_the_embedded_trainer(
    pool: RankPool, models: dict[str, Path], model: str, options: dict[str, Any]
) -> None:
    # AdamW divides by the size of a gradient; with this eps, rounding in one that is 0 stays small.
    job = Job(models[model], steps=3, chunk=2, options={"eps": 1e-4, **options})
    expected, (first, second) = embedded(job), pool(2, sharded, job)
    assert first.digest == second.digest
    for ours, theirs in zip(first.metrics, expected.metrics, strict=True):
        assert dict(ours) == pytest.approx(dict(theirs), rel=1e-4, abs=1e-6)
    moved = {n: first.weights[n] - expected.weights[n] for n in first.weights}
    assert max(float(delta.abs().max()) for delta in moved.values()) < 1e-5
