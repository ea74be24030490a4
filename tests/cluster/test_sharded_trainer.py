"""The sharded trainer on a real Ray cluster: its contract with two ranks, and what ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from outlast.adapters.trainers.sharded_actors import RankLost
from outlast.adapters.trainers.sharded_trainer import ShardedTrainer
from outlast.adapters.trainers.torch_trainer import TorchTrainer
from outlast.adapters.weight_transfer import fetch
from outlast.config.schema import AlgorithmSection, RaySection, TrainingSection
from outlast.errors import DiskError, InvariantError, StallAbort
from outlast.model.ids import AttemptKey, Incarnation, Step, TrainerVersion
from outlast.ports import TrainGroup
from outlast.rows import Row
from tests.adapters.models import DictPlane, payload_digest, random_groups, save_llama
from tests.contracts.trainer_contract import START, TrainerContract, TrainerSubject, take_step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

TRAINING = TrainingSection(
    backend="fsdp2",
    world_size=2,
    timeout_s=30.0,
    micro_batch_size=3,
    warmup_steps=2,
    schedule="cosine",
    schedule_steps=10,
    learning_rate=1e-3,
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("models") / "llama")


class Rows:
    """Rows by key, in whatever process it is unpickled."""

    def __init__(self, rows: dict[AttemptKey, Row]) -> None:
        self.rows = rows

    def fetch(self, keys: Sequence[AttemptKey], /) -> list[Row]:
        return [self.rows[key] for key in keys]


PARKED: list[list[Any]] = []
"""Actors that are ranks of nothing at the moment."""


class Recycled(ShardedTrainer):
    """Leaves its actors, when they are well, to the next one: a process that imports torch anew
    costs seconds."""

    def _make_actors(self) -> list[Any]:
        return PARKED.pop() if PARKED else super()._make_actors()

    async def close(self) -> None:
        actors, self._actors = self._actors, None
        if actors is not None and actors._lost is None:
            await actors.beside("leave")
            PARKED.append(list(actors._actors))
        elif actors is not None:
            await actors.farewell()
        await super().close()


@pytest.fixture(scope="module", autouse=True)
def parked(cluster: None) -> Iterator[None]:
    """Ends parked actors before their cluster."""
    yield
    PARKED.clear()


def sharded(
    directory: Path, plane: DictPlane, *, transfer: str = "file", reader: Rows | None = None
) -> ShardedTrainer:
    return Recycled(
        model_path=str(directory),
        algorithm=AlgorithmSection(),
        training=TRAINING,
        plane=plane,  # type: ignore[arg-type]  # trainers only read
        temperature=0.8,
        ray=RaySection(),
        transfer=transfer,
        reader=reader,
    )


class TestShardedTrainer(TrainerContract):
    @pytest.fixture(autouse=True)
    def _parameters(self, llama: Path) -> None:
        self.directory = llama

    def make(self) -> TrainerSubject:
        plane = DictPlane()
        return TrainerSubject(
            make=lambda: sharded(self.directory, plane),
            groups=lambda step: random_groups(plane, step),
            silent_groups=lambda step: random_groups(plane, step, silent=True),
            fingerprint=lambda payload: payload_digest(fetch(payload)),
        )


def with_trainer(
    directory: Path,
    test: Callable[[ShardedTrainer, DictPlane], Coroutine[Any, Any, None]],
    **options: Any,
) -> None:
    async def body() -> None:
        plane = DictPlane()
        trainer = sharded(directory, plane, **options)
        await trainer.start(None, START)
        try:
            await test(trainer, plane)
        finally:
            await trainer.close()

    asyncio.run(body())


async def pids(trainer: ShardedTrainer) -> list[int]:
    return await trainer._ranks.ordered("pid")


@pytest.mark.parametrize("transfer", ["file", "ray"])
def test_weights_and_digest_are_the_embedded_trainers(llama: Path, transfer: str) -> None:
    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        embedded = TorchTrainer(
            model_path=str(llama),
            algorithm=AlgorithmSection(),
            training=TRAINING,
            plane=plane,  # type: ignore[arg-type]
            temperature=0.8,
        )
        await embedded.start(None, START)
        try:
            assert await trainer.digest() == await embedded.digest()
            ours, theirs = [await t.weights(Incarnation(1)) for t in (trainer, embedded)]
            assert ours.version == theirs.version
            assert payload_digest(fetch(ours.payload)) == payload_digest(theirs.payload)
        finally:
            await embedded.close()

    with_trainer(llama, test, transfer=transfer)


def test_rows_may_come_from_a_reader_in_the_ranks(llama: Path) -> None:
    """Same step, though no row passes through the controller."""
    outcomes = []

    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        outcomes.append(await take_step(trainer, 1, random_groups(plane, 1)))

    filled = DictPlane()
    groups = random_groups(filled, 1)

    async def without_plane(trainer: ShardedTrainer, plane: DictPlane) -> None:
        assert not plane.rows
        outcomes.append(await take_step(trainer, 1, groups))

    with_trainer(llama, test)
    with_trainer(llama, without_plane, reader=Rows(filled.rows))
    assert outcomes[0] == outcomes[1]


def test_cancelling_a_chunk_stops_all_ranks_soon_and_the_step_can_be_taken_again(
    llama: Path,
) -> None:
    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        before = await trainer.digest()
        groups = many(plane)
        await trainer.begin_step(Step(1))
        task = asyncio.ensure_future(trainer.accumulate(groups))
        await asyncio.sleep(1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InvariantError, match="interrupted"):
            await trainer.finish_step()
        await asyncio.wait_for(trainer.abort_step(), 3)
        assert await trainer.digest() == before
        assert (await take_step(trainer, 1, groups[:4])).step == 1

    with_trainer(llama, test)


def many(plane: DictPlane) -> list[TrainGroup]:
    """A chunk that takes many seconds."""
    return [group for n in range(1, 400) for group in random_groups(plane, n)]


async def kill_and_measure(pid: int, work: Coroutine[Any, Any, object], *, after_s: float) -> float:
    """Kill a rank while `work` runs; how long the error took."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(after_s)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RankLost, match="died"):
        await task
    return time.monotonic() - began


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_killed_while_it_accumulates_ends_all_in_seconds(llama: Path, victim: int) -> None:
    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        processes = await pids(trainer)
        await trainer.begin_step(Step(1))
        chunk = trainer.accumulate(many(plane))
        assert await kill_and_measure(processes[victim], chunk, after_s=1) < 10
        with pytest.raises(RankLost, match=f"rank {victim} of 2 died during accumulate"):
            await trainer.abort_step()
        await gone(processes)

    with_trainer(llama, test)


async def gone(processes: Sequence[int]) -> None:
    until = time.monotonic() + 10
    while any(os.path.isdir(f"/proc/{pid}") for pid in processes):  # noqa: ASYNC240
        assert time.monotonic() < until, "a rank outlived the others"
        await asyncio.sleep(0.05)


def test_a_rank_killed_inside_finish_step_is_a_clear_error(llama: Path) -> None:
    """It is stopped first, so that the others are really waiting for it in the middle of finish."""

    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        processes = await pids(trainer)
        await trainer.begin_step(Step(1))
        await trainer.accumulate(random_groups(plane, 1))
        os.kill(processes[1], signal.SIGSTOP)
        assert await kill_and_measure(processes[1], trainer.finish_step(), after_s=1) < 10
        await gone(processes)

    with_trainer(llama, test)


def test_a_rank_that_hangs_meets_the_deadline(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        processes = await pids(trainer)
        monkeypatch.setattr(trainer._ranks, "_timeout_s", 2.0)
        os.kill(processes[1], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(StallAbort, match=r"no answer to digest in 2 s"):
            await trainer.digest()
        assert time.monotonic() - began < 10
        await gone(processes)

    with_trainer(llama, test)


def test_a_full_disk_is_an_error_of_the_checkpoint_and_training_goes_on(
    llama: Path, tmp_path: Path
) -> None:
    async def test(trainer: ShardedTrainer, plane: DictPlane) -> None:
        await take_step(trainer, 1, random_groups(plane, 1))
        nowhere = tmp_path / "file"
        nowhere.write_text("not a directory", encoding="utf-8")
        with pytest.raises(DiskError):
            await (await trainer.stage()).write(nowhere / "step")
        await take_step(trainer, 2, random_groups(plane, 2))
        staged = await trainer.stage()
        await staged.write(tmp_path)
        with pytest.raises(InvariantError, match="already written"):
            await staged.write(tmp_path)
        embedded = TorchTrainer(
            model_path=str(llama),
            algorithm=AlgorithmSection(),
            training=TRAINING,
            plane=plane,  # type: ignore[arg-type]
            temperature=0.8,
        )
        await embedded.start(tmp_path, TrainerVersion(2))
        try:
            assert await embedded.digest() == await trainer.digest()
        finally:
            await embedded.close()

    with_trainer(llama, test)


def test_the_real_close_ends_the_ranks_after_the_write_in_flight(
    llama: Path, tmp_path: Path
) -> None:
    async def body() -> None:
        plane = DictPlane()
        trainer = sharded(llama, plane)
        await trainer.start(None, START)
        processes = await pids(trainer)
        await take_step(trainer, 1, random_groups(plane, 1))
        staged = await trainer.stage()
        write = asyncio.ensure_future(staged.write(tmp_path))
        await asyncio.sleep(0)
        write.cancel()
        await ShardedTrainer.close(trainer)
        await gone(processes)

    asyncio.run(body())
    assert (tmp_path / ".metadata").is_file()
