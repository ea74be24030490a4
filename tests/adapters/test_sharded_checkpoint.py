"""Checkpoints of a sharded trainer: the same state whatever the number of ranks that wrote it."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from outlast.adapters.trainers.sharded_checkpoint import write_shards
from outlast.adapters.trainers.sharded_core import ShardedCore
from outlast.adapters.trainers.sharded_group import Ranks
from outlast.adapters.trainers.torch_checkpoint import write_checkpoint
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.errors import CorruptData, DiskError, DiskFull, NotRestorable
from outlast.model.ids import Step, TrainerVersion
from tests.adapters.models import DictPlane
from tests.adapters.sharded_ranks import RankPool
from tests.adapters.test_sharded_core import START, Job, share_of

TWO = TrainerVersion(2)


def load(ranks: Ranks | None, job: Job, checkpoint: Path | None) -> TrainerCore:
    sections = job.sections()
    core = TrainerCore(**sections) if ranks is None else ShardedCore(**sections, ranks=ranks)
    core.load(checkpoint, START if checkpoint is None else TWO)
    return core


def train(core: TrainerCore, job: Job, ranks: Ranks | None) -> None:
    plane = DictPlane()
    for step in range(core.version + 1, core.version + 1 + job.steps):
        core.begin(Step(step))
        for groups in job.chunks(plane, step):
            rows = plane.rows if ranks is None else share_of(plane, groups, ranks)
            core.accumulate(groups, rows, abandoned=threading.Event())
        core.finish()


def write(core: TrainerCore, ranks: Ranks | None, directory: Path) -> None:
    if ranks is None:
        write_checkpoint(directory, core.staged())
    else:
        write_shards(directory, core.staged(), group=ranks.checkpoint)


def trained(ranks: Ranks | None, job: Job, directory: Path) -> str:
    """Two steps, written to `directory`."""
    core = load(ranks, job, None)
    train(core, job, ranks)
    write(core, ranks, directory)
    return core.digest()


def written_again(ranks: Ranks | None, job: Job, source: Path, target: Path) -> str:
    """Restored from `source` and written to `target`, with nothing done in between."""
    core = load(ranks, job, source)
    write(core, ranks, target)
    return core.digest()


def on(pool: RankPool, size: int, work: object, *arguments: object) -> str:
    """What `work` returns on `size` ranks, or with 0 in the embedded trainer."""
    assert callable(work)
    if not size:
        return str(work(None, *arguments))
    (result,) = set(pool(size, work, *arguments))
    return str(result)


def contents(directory: Path, job: Job) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, whole."""
    core = load(None, job, directory)
    return core.staged()


@pytest.mark.parametrize("model", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "sizes", [(0, 2), (1, 2), (2, 1), (2, 3), (3, 2), (2, 0)], ids=lambda s: f"{s[0]}to{s[1]}"
)
def test_A1_state_is_bit_identical_in_another_number_of_ranks(
    pool: RankPool, models: dict[str, Path], model: str, sizes: tuple[int, int], tmp_path: Path
) -> None:
    job = Job(models[model], steps=2)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    before = on(pool, sizes[0], trained, job, first)
    after = on(pool, sizes[1], written_again, job, first, second)
    assert before == after
    expected, observed = contents(first, job), contents(second, job)
    assert observed.keys() == expected.keys()
    assert all(torch.equal(observed[name], value) for name, value in expected.items())
    moments = [value for name, value in expected.items() if "exp_avg" in name]
    assert moments and all(value.any() for value in moments)


def test_A1_a_restored_trainer_continues_bit_for_bit(
    pool: RankPool, models: dict[str, Path], tmp_path: Path
) -> None:
    """The staged copy is private: what is trained before it is written does not reach it."""
    for outcome in pool(2, _staged_then_continued, Job(models["llama"], steps=2), tmp_path):
        assert outcome[0] == outcome[1]


def _staged_then_continued(ranks: Ranks, job: Job, directory: Path) -> tuple[str, str]:
    core = load(ranks, job, None)
    train(core, job, ranks)
    staged = core.staged()
    writer = threading.Thread(
        target=write_shards, args=(directory, staged), kwargs={"group": ranks.checkpoint}
    )
    writer.start()  # beside training
    train(core, job, ranks)
    writer.join()
    other = load(ranks, job, directory)
    train(other, job, ranks)
    return core.digest(), other.digest()


def test_every_rank_syncs_its_own_file(
    pool: RankPool, models: dict[str, Path], tmp_path: Path
) -> None:
    synced = pool(3, _synced, Job(models["llama"], steps=1), tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"__0_0.distcp", "__1_0.distcp", "__2_0.distcp", ".metadata"}
    assert synced == [{"__0_0.distcp", ".metadata"}, {"__1_0.distcp"}, {"__2_0.distcp"}]


def _synced(ranks: Ranks, job: Job, directory: Path) -> set[str]:
    synced, real = set(), os.fsync

    def record(descriptor: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        synced.add(name.removesuffix(".tmp"))
        real(descriptor)

    core = load(ranks, job, None)
    os.fsync = record
    try:
        write(core, ranks, directory)
    finally:
        os.fsync = real
    return synced


@pytest.mark.parametrize(("number", "expected"), [(28, DiskFull), (5, DiskError)])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_disk_that_fails_on_one_rank_fails_on_all_and_hangs_none(
    pool: RankPool,
    models: dict[str, Path],
    tmp_path: Path,
    number: int,
    expected: type[Exception],
    failing: int,
) -> None:
    job = Job(models["llama"])
    assert pool(2, _failing_disk, job, tmp_path, number, failing) == [expected.__name__] * 2


def _failing_disk(ranks: Ranks, job: Job, directory: Path, number: int, failing: int) -> str:
    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    core, real = load(ranks, job, None), os.fsync
    if ranks.rank == failing:
        os.fsync = fail
    try:
        write(core, ranks, directory)
    except DiskError as error:
        return type(error).__name__
    finally:
        os.fsync = real
        dist.barrier(ranks.checkpoint)  # the group is whole: the next checkpoint can be written
    return "written"


def test_what_does_not_fit_is_refused_by_all_ranks(
    pool: RankPool, models: dict[str, Path], tmp_path: Path
) -> None:
    job, other = Job(models["llama"], steps=2), Job(models["gpt2"], steps=2)
    good, torn = tmp_path / "good", tmp_path / "torn"
    good.mkdir()
    on(pool, 2, trained, job, good)
    with pytest.raises(NotRestorable, match="belongs to another model"):
        on(pool, 2, written_again, other, good, tmp_path)
    shutil.copytree(good, torn)
    (torn / "__1_0.distcp").write_bytes((good / "__1_0.distcp").read_bytes()[:1000])
    with pytest.raises(CorruptData):
        on(pool, 2, written_again, job, torn, tmp_path)
