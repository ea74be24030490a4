"""The embedded trainer beyond its contract: gradients, metrics, agreement with the engine."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outlast.adapters.engines.torch_engine import TorchEngine
from outlast.adapters.torch_model import load_model
from outlast.adapters.trainers import torch_batch
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.adapters.trainers.torch_schedule import check_schedule, learning_rate
from outlast.adapters.trainers.torch_trainer import TorchTrainer
from outlast.algorithms.advantages import group_advantages
from outlast.config.schema import AlgorithmSection, GenerationSection, TrainingSection
from outlast.errors import InvariantError, RecipeError
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex, Step, TrainerVersion
from outlast.ports import GenerationRequest, SamplingParams, TrainGroup
from outlast.rows import Row
from tests.adapters.models import DictPlane, random_groups
from tests.contracts.engine_contract import respond
from tests.contracts.trainer_contract import take_step

START = TrainerVersion(0)


def make_core(directory: Path, **options: Any) -> TrainerCore:
    """A loaded core; `options` are fields of the algorithm and training sections."""
    training = {k: options.pop(k) for k in list(options) if k in TrainingSection.model_fields}
    deterministic = options.pop("deterministic", False)
    core = TrainerCore(
        directory=directory,
        algorithm=AlgorithmSection(**options),
        training=TrainingSection(**{"micro_batch_size": 3, **training}),
        temperature=0.8,
        deterministic=deterministic,
    )
    core.load(None, START)
    return core


def feed(core: TrainerCore, plane: DictPlane, groups: Sequence[TrainGroup], chunk: int) -> None:
    core.begin(Step(core.version + 1))
    for start in range(0, len(groups), chunk):
        core.accumulate(groups[start : start + chunk], plane.rows, abandoned=threading.Event())


def gradients(core: TrainerCore) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in core._parameters.items() if p.grad is not None}


def naive_gradients(
    directory: Path, plane: DictPlane, groups: Sequence[TrainGroup], *, sequence: bool
) -> tuple[float, dict[str, Tensor]]:
    """Mean loss and its gradients, row by row without padding, written down a second time."""
    model = load_model(directory)
    total, count = torch.zeros(()), 0
    for group in groups:
        rewards, keep = torch.tensor([group.rewards]), torch.tensor([group.keep])
        advantages = group_advantages(rewards, keep, estimator="grpo")[0]
        for key, kept, advantage in zip(group.keys, group.keep, advantages, strict=True):
            row = plane.rows[key]
            mask = torch.from_numpy(row.loss_mask)
            if not kept or row.mask_sample or not mask.any():
                continue
            ids = torch.tensor([[*row.prompt_ids.tolist(), *row.response_ids.tolist()]])
            logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / 0.8
            chosen = torch.from_numpy(row.response_ids).long()[:, None]
            logprobs = torch.log_softmax(logits, -1).gather(1, chosen)[:, 0]
            ratio = (logprobs - torch.from_numpy(row.logprobs)).exp()
            weight = ratio * (2.0 / ratio.detach()).clamp(max=1.0)
            surrogate = torch.minimum(weight * advantage, weight.clamp(0.8, 1.28) * advantage)
            losses = -surrogate[mask]
            total = total + (losses.mean() if sequence else losses.sum())
            count += 1 if sequence else len(losses)
    loss = total / count
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_close(observed: dict[str, Tensor], expected: dict[str, Tensor], rel: float) -> None:
    assert observed.keys() == expected.keys()
    for name, value in expected.items():
        error = (observed[name] - value).norm() / value.norm().clamp(min=1e-12)
        assert error < rel, f"{name}: relative error {error}"


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_gradients_are_those_of_the_mean_loss(
    models: dict[str, Path], model: str, normalisation: str
) -> None:
    plane = DictPlane()
    groups = random_groups(plane, 1)
    core = make_core(models[model], normalisation=normalisation, grad_clip=1e9)
    feed(core, plane, groups, chunk=2)
    outcome = core.finish()
    sequence = normalisation == "sequence"
    loss, expected = naive_gradients(models[model], plane, groups, sequence=sequence)
    assert outcome.metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert_close(gradients(core), expected, rel=1e-4)


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_running_a_shared_prompt_once_changes_no_gradient(
    models: dict[str, Path], model: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients flow through the keys and values of the one prompt pass of all siblings."""
    plane = DictPlane()
    groups = random_groups(plane, 1)
    apart = make_core(models[model], micro_batch_size=size)
    feed(apart, plane, groups, chunk=4)
    monkeypatch.setattr(torch_batch, "SHARED_TOKENS_MIN", 1)
    shared = make_core(models[model], micro_batch_size=size)
    calls = _count_calls(shared)
    feed(shared, plane, groups, chunk=4)
    assert calls["cached"] > 0
    assert_close(gradients(shared), gradients(apart), rel=1e-5)


def _count_calls(core: TrainerCore) -> Counter[str]:
    """Forward passes of the policy, by whether they fill a cache."""
    counts: Counter[str] = Counter()

    def count(module: torch.nn.Module, args: object, kwargs: dict[str, Any]) -> None:
        counts["cached" if kwargs.get("use_cache") else "plain"] += 1

    core._model.register_forward_pre_hook(count, with_kwargs=True)
    return counts


def test_siblings_stay_together_only_where_their_prompt_is_worth_sharing() -> None:
    long, short = sample(prompt=300, responses=(3, 9, 5)), sample(prompt=4, responses=(7, 2))
    parts = torch_batch.micro_batches([*short, *long], size=2, ordered=False)
    lengths = [[len(s.row.response_ids) for s in part] for part in parts]
    assert lengths == [[2, 7], [3, 9], [5]] or lengths == [[3, 9], [5], [2, 7]]
    ordered = torch_batch.micro_batches(short, size=2, ordered=True)
    assert [len(s.row.response_ids) for s in ordered[0]] == [7, 2]


def sample(*, prompt: int, responses: tuple[int, ...]) -> list[torch_batch.Sample]:
    """Siblings of one prompt, with responses of these lengths."""
    samples = []
    for index, length in enumerate(responses):
        key = AttemptKey(GroupId(prompt), SiblingIndex(index), Incarnation(1), 0)
        row = Row(
            key=key,
            prompt_ids=np.full(prompt, 3, dtype=np.int32),
            response_ids=np.full(length, 4, dtype=np.int32),
            logprobs=np.zeros(length, dtype=np.float32),
            weight_versions=np.zeros(length, dtype=np.int32),
            loss_mask=np.ones(length, dtype=np.bool_),
            reward=1.0,
            mask_sample=False,
        )
        samples.append(torch_batch.Sample(row, 1.0, row.loss_mask))
    return samples


@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"kl_coef": 0.1}])
def test_streamed_gradients_equal_the_full_batch(
    models: dict[str, Path], chunk: int, options: dict[str, Any]
) -> None:
    plane = DictPlane()
    groups = random_groups(plane, 1)
    whole, streamed = make_core(models["llama"], **options), make_core(models["llama"], **options)
    feed(whole, plane, groups, chunk=4)
    feed(streamed, plane, groups, chunk=chunk)
    assert_close(gradients(streamed), gradients(whole), rel=1e-5)


def test_metrics_count_what_was_trained(models: dict[str, Path]) -> None:
    plane = DictPlane()
    groups = [*random_groups(plane, 1), *random_groups(plane, 1, silent=True)[:1]]
    core = make_core(models["llama"])
    feed(core, plane, groups, chunk=2)
    metrics = core.finish().metrics
    rows = [
        (plane.rows[key], keep) for g in groups for key, keep in zip(g.keys, g.keep, strict=True)
    ]
    valid = [int(r.loss_mask.sum()) if keep and not r.mask_sample else 0 for r, keep in rows]
    assert metrics["tokens"] == sum(valid)
    assert metrics["trained_tokens"] == sum(valid[:16])  # the silent group costs no compute
    assert (metrics["groups"], metrics["silent_groups"]) == (5, 1)
    assert metrics["response_length"] == pytest.approx(
        np.mean([len(r.response_ids) for r, _ in rows])
    )
    kept = [r for g in groups for r, keep in zip(g.rewards, g.keep, strict=True) if keep]
    assert metrics["reward_mean"] == pytest.approx(np.mean(kept))
    assert 0 < metrics["truncated_fraction"] < 1
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["ratio_max"] <= 2.0 + 1e-6


def test_kl_pulls_even_silent_groups_back_to_the_initial_model(models: dict[str, Path]) -> None:
    plane = DictPlane()
    core = make_core(models["llama"], kl_coef=0.5, learning_rate=1e-2)
    feed(core, plane, random_groups(plane, 1), chunk=4)
    first = core.finish().metrics
    assert first["kl"] == pytest.approx(0, abs=1e-6)
    feed(core, plane, random_groups(plane, 2, silent=True), chunk=4)
    second = core.finish().metrics
    assert second["kl"] > 1e-4
    assert second["grad_norm"] > 0


def test_an_interrupted_chunk_cannot_be_finished(models: dict[str, Path]) -> None:
    plane = DictPlane()
    groups = random_groups(plane, 1)
    core = make_core(models["llama"])
    core.begin(Step(1))
    abandoned = threading.Event()
    abandoned.set()
    core.accumulate(groups, plane.rows, abandoned=abandoned)
    with pytest.raises(InvariantError, match="interrupted"):
        core.finish()
    core.abort()
    feed(core, plane, groups, chunk=4)
    assert core.finish().step == 1


def test_non_finite_gradients_leave_the_weights_alone(models: dict[str, Path]) -> None:
    plane = DictPlane()
    core = make_core(models["llama"])
    before = core.digest()
    feed(core, plane, random_groups(plane, 1), chunk=4)
    next(iter(core._parameters.values())).grad.fill_(float("nan"))  # type: ignore[union-attr]
    with pytest.raises(InvariantError, match="nan"):
        core.finish()
    assert core.digest() == before


def test_bfloat16_autocast_stays_near_float32(models: dict[str, Path]) -> None:
    plane = DictPlane()
    groups = random_groups(plane, 1)
    exact, narrow = make_core(models["llama"]), make_core(models["llama"], autocast="bfloat16")
    for core in (exact, narrow):
        feed(core, plane, groups, chunk=4)
    assert_close(gradients(narrow), gradients(exact), rel=0.1)
    assert all(p.dtype == torch.float32 for p in narrow._parameters.values())


def with_trainer(
    directory: Path, test: Callable[[TorchTrainer, DictPlane], Coroutine[Any, Any, None]]
) -> None:
    async def body() -> None:
        plane = DictPlane()
        trainer = TorchTrainer(
            model_path=str(directory),
            algorithm=AlgorithmSection(),
            training=TrainingSection(),
            plane=plane,  # type: ignore[arg-type]  # trainers only read
            temperature=0.8,
        )
        await trainer.start(None, START)
        try:
            await test(trainer, plane)
        finally:
            await trainer.close()

    asyncio.run(body())


@pytest.mark.parametrize("model", ["llama", "untied", "gpt2"])
def test_engine_and_trainer_mean_the_same_logprobs(models: dict[str, Path], model: str) -> None:
    """On-policy float32 rows: every ratio is one, through sampling, storage and recomputation."""

    async def test(trainer: TorchTrainer, plane: DictPlane) -> None:
        engine = TorchEngine(model_path=str(models[model]), generation=GenerationSection())
        await engine.start()
        await engine.update_weights(await trainer.weights(Incarnation(1)))
        keys = []
        for sibling in range(6):
            item = GenerationRequest(
                id=f"s{sibling}",
                incarnation=Incarnation(1),
                prompt_ids=np.asarray([4, 8, 15], dtype=np.int32),
                sampling=SamplingParams(max_new_tokens=5 + 7 * sibling, temperature=0.8),
                seed=sibling,
            )
            response = await respond(engine, item)
            key = AttemptKey(GroupId(0), SiblingIndex(sibling), Incarnation(1), 0)
            plane.add(
                Row(
                    key=key,
                    prompt_ids=item.prompt_ids,
                    response_ids=np.asarray(response.ids, dtype=np.int32),
                    logprobs=np.asarray(response.logprobs, dtype=np.float32),
                    weight_versions=np.asarray(response.versions, dtype=np.int32),
                    loss_mask=np.ones(len(response.ids), dtype=np.bool_),
                    reward=float(sibling),
                    mask_sample=False,
                )
            )
            keys.append(key)
        await engine.close()
        rewards = tuple(float(n) for n in range(6))
        group = TrainGroup(GroupId(0), tuple(keys), rewards, (True,) * 6)
        metrics = (await take_step(trainer, 1, [group])).metrics
        assert metrics["dlogp_max"] < 1e-4
        assert metrics["ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["trained_tokens"] == sum(5 + 7 * n for n in range(6))

    with_trainer(models[model], test)


def test_cancelling_a_chunk_stops_it_soon_and_the_step_can_be_aborted(
    models: dict[str, Path],
) -> None:
    async def test(trainer: TorchTrainer, plane: DictPlane) -> None:
        before = await trainer.digest()
        groups = [group for n in range(1, 60) for group in random_groups(plane, n)]
        await trainer.begin_step(Step(1))
        task = asyncio.ensure_future(trainer.accumulate(groups))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InvariantError, match="interrupted"):
            await trainer.finish_step()
        await asyncio.wait_for(trainer.abort_step(), 5)
        assert await trainer.digest() == before
        assert (await take_step(trainer, 1, groups[:4])).step == 1

    with_trainer(models["llama"], test)


def test_rows_without_prompt_are_refused(models: dict[str, Path]) -> None:
    plane = DictPlane()
    key = AttemptKey(GroupId(0), SiblingIndex(0), Incarnation(1), 0)
    one = np.ones(1, dtype=np.int32)
    plane.add(
        Row(
            key=key,
            prompt_ids=one[:0],
            response_ids=one,
            logprobs=-one.astype(np.float32),
            weight_versions=one,
            loss_mask=one.astype(np.bool_),
            reward=1.0,
            mask_sample=False,
        )
    )
    core = make_core(models["llama"])
    core.begin(Step(1))
    group = TrainGroup(GroupId(0), (key,), (1.0,), (True,))
    with pytest.raises(InvariantError, match=r"g0\.s0\.i1\.n0"):
        core.accumulate([group], plane.rows, abandoned=threading.Event())


def test_learning_rate_follows_the_schedule() -> None:
    cosine = TrainingSection(
        learning_rate=1.0, warmup_steps=2, schedule="cosine", schedule_steps=10
    )
    linear = cosine.model_copy(update={"schedule": "linear"})
    constant = cosine.model_copy(update={"schedule": "constant"})
    assert [learning_rate(cosine, s) for s in (1, 2, 6, 10, 11)] == pytest.approx(
        [0.5, 1, 0.5, 0, 0]
    )
    assert [learning_rate(linear, s) for s in (1, 2, 4, 10)] == pytest.approx([0.5, 1, 0.75, 0])
    assert [learning_rate(constant, s) for s in (1, 2, 99)] == pytest.approx([0.5, 1, 1])
    assert learning_rate(TrainingSection(learning_rate=3e-4), 1) == 3e-4
    with pytest.raises(RecipeError, match="schedule_steps"):
        check_schedule(TrainingSection(schedule="linear", warmup_steps=5, schedule_steps=5))
