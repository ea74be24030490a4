"""The ranks of a sharded trainer, as plain processes: same step as the embedded trainer's."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from outlast.adapters.trainers.sharded_core import ShardedCore
from outlast.adapters.trainers.sharded_group import Ranks
from outlast.adapters.trainers.sharded_plan import shares
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.errors import InvariantError
from outlast.model.ids import AttemptKey, Step, TrainerVersion
from outlast.ports import TrainGroup
from outlast.rows import Row
from tests.adapters.models import DictPlane, random_groups
from tests.adapters.sharded_ranks import RankPool

START = TrainerVersion(0)


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


# ---------------------------------------------------------------------------- staying in step


def test_all_ranks_get_the_same_bits_twice(pool: RankPool, models: dict[str, Path]) -> None:
    job = Job(models["llama"], steps=2, chunk=2)
    first, again = pool(2, sharded, job), pool(2, sharded, job)
    assert first[0].digest == first[1].digest == again[0].digest
    assert first[0].metrics == first[1].metrics == again[0].metrics


@pytest.mark.parametrize("kl", [0.0, 0.5])
def test_a_rank_without_a_loud_sample_keeps_no_other_waiting(
    pool: RankPool, models: dict[str, Path], kl: float
) -> None:
    """One group of four siblings over three ranks, one of them silent; and no loud one at all."""
    for job in (
        Job(models["llama"], groups=1, options={"kl_coef": kl}),
        Job(models["llama"], silent=True, options={"kl_coef": kl}),
    ):
        expected = embedded(job).metrics[0]
        for outcome in pool(3, _lopsided, job):
            close = pytest.approx(dict(expected), rel=1e-5, abs=1e-7)
            assert dict(outcome.metrics[0]) == close


def _lopsided(ranks: Ranks, job: Job) -> Outcome:
    """Rank 0 has everything, the others nothing."""
    core = ShardedCore(**job.sections(), ranks=ranks)
    core.load(None, START)
    plane = DictPlane()
    core.begin(Step(1))
    for groups in job.chunks(plane, 1):
        rows = {} if ranks.rank else plane.rows
        core.accumulate(groups, rows, abandoned=threading.Event())
    return Outcome([core.finish().metrics], {}, {}, "")


def test_an_abandoned_chunk_ends_on_all_ranks_before_the_same_micro_batch(
    pool: RankPool, models: dict[str, Path]
) -> None:
    """Only one rank hears of it, in the middle; then the step is taken again, undisturbed."""
    job = Job(models["llama"], options={"micro_batch_size": 1})
    whole = pool(2, sharded, job)
    outcomes = pool(2, _abandoned, job)
    assert {passes for passes, _, _ in outcomes} == {5}
    for _, unchanged, digest in outcomes:
        assert unchanged
        assert digest == whole[0].digest


def _abandoned(ranks: Ranks, job: Job) -> tuple[int, bool, str]:
    core = ShardedCore(**job.sections(), ranks=ranks)
    core.load(None, START)
    before, passes, abandoned = core.digest(), 0, threading.Event()

    def count(module: object, arguments: object) -> None:
        nonlocal passes
        passes += 1
        if passes == 5 and ranks.rank == 1:
            abandoned.set()

    hook = core._model.register_forward_pre_hook(count)
    plane = DictPlane()
    (groups,) = job.chunks(plane, 1)
    rows = share_of(plane, groups, ranks)
    core.begin(Step(1))
    core.accumulate(groups, rows, abandoned=abandoned)
    with pytest.raises(InvariantError, match="interrupted"):
        core.finish()
    core.abort()
    seen, unchanged = passes, core.digest() == before
    hook.remove()
    core.begin(Step(1))
    core.accumulate(groups, rows, abandoned=threading.Event())
    core.finish()
    return seen, unchanged, core.digest()


def test_shares_are_balanced_in_number_and_in_tokens() -> None:
    rng = np.random.default_rng(0)
    for count in (0, 1, 5, 64, 129):
        for ranks in (1, 2, 3, 8):
            lengths = [int(n) for n in rng.integers(1, 500, count)]
            parts = shares(lengths, ranks)
            assert sorted(at for part in parts for at in part) == list(range(count))
            sizes, loads = [len(p) for p in parts], [sum(lengths[a] for a in p) for p in parts]
            assert max(sizes) <= -(-count // ranks)
            assert max(loads) - min(loads) <= max(lengths, default=0)
            assert parts == shares(lengths, ranks)
    assert shares([0, 9, 0, 9, 0, 0], 2) == [[0, 1, 4], [2, 3, 5]]
