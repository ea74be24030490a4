"""The sharded trainer: port `Trainer` over ranks in Ray actors, without a tensor in this process.

| part       | holds                                                                    |
|------------|--------------------------------------------------------------------------|
| controller | metadata of groups, lengths of rows, which rank trains which sibling     |
| ranks      | shards of weights and moments, gradients, staged copies; rows as needed  |
| rank 0     | also whole weights while they are published                              |

Checkpoints are written by all ranks into one directory, which on a cluster of several machines must
be on storage that all of them share. A cancelled `accumulate` stops on all ranks at the same
micro-batch. A rank that dies ends the run with `RankLost`. May import: `ports`, `ray_session`,
`sharded_actors`, `sharded_plan`; ray and torch when started.
"""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from outlast.adapters.ray_session import SESSION
from outlast.adapters.ray_signals import take_signals_back
from outlast.adapters.torch_model import resolve_model_directory
from outlast.adapters.trainers.sharded_actors import RankActors
from outlast.adapters.trainers.sharded_plan import costs, shares
from outlast.adapters.trainers.sharded_rank import RankSpec, TrainerRank, row_length
from outlast.adapters.trainers.torch_schedule import check_schedule
from outlast.config.schema import AlgorithmSection, RaySection, TrainingSection
from outlast.errors import InvariantError
from outlast.model.ids import AttemptKey, Incarnation, Step, TrainerVersion
from outlast.ports import DataPlane, StepOutcome, TrainGroup, Weights

Shares = Sequence[Sequence[object]]
R = TypeVar("R")


class StagedShards:
    """A private copy of trainer state, a shard in every rank; port `StagedCheckpoint`."""

    def __init__(self, number: int, ranks: RankActors) -> None:
        self.number = number
        self._ranks = ranks
        self._written = False

    async def write(self, directory: Path, /) -> None:
        """Write once; the copy is let go afterwards. Raises DiskFull or DiskError."""
        if self._written:
            raise InvariantError(f"checkpoint {directory}: this staged copy was already written")
        self._written = True
        await self._ranks.beside("write", self.number, _anywhere(directory))


class ShardedTrainer:
    """See the module's docstring. Raises RecipeError for an unusable model or schedule."""

    def __init__(
        self,
        *,
        model_path: str,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        plane: DataPlane,
        temperature: float,
        deterministic: bool = False,
        ray: RaySection,
        reader: Any = None,
        transfer: str,
    ) -> None:
        """`reader` fetches rows in the ranks; without one, they get them through this process."""
        check_schedule(training)
        self._plane = plane
        self._ray_settings = ray
        self._spec = RankSpec(
            directory=resolve_model_directory(model_path).absolute(),
            algorithm=algorithm,
            training=training,
            temperature=temperature,
            deterministic=deterministic,
            transfer=transfer,
            reader=reader,
        )
        self._ray: Any = None
        self._actors: RankActors | None = None
        self._numbers = itertools.count(1)
        self._staged: weakref.WeakValueDictionary[int, StagedShards] = weakref.WeakValueDictionary()
        self._interrupted = False

    # --------------------------------------------------------------------------------- life

    async def start(self, checkpoint: Path | None, version: TrainerVersion, /) -> None:
        """Raises NotRestorable or CorruptData when the checkpoint does not fit the recipe."""
        if self._ray is not None:
            raise InvariantError("ShardedTrainer.start: already started; one start per trainer")
        self._ray = await asyncio.to_thread(SESSION.acquire, self._ray_settings)
        take_signals_back()
        timeout_s = self._spec.training.timeout_s
        self._actors = RankActors(
            self._ray, await asyncio.to_thread(self._make_actors), timeout_s=timeout_s
        )
        await self._join(self._actors)
        where = None if checkpoint is None else _anywhere(checkpoint)
        await self._actors.ordered("load", where, version)

    def _make_actors(self) -> list[Any]:
        training = self._spec.training
        cuda = training.device.startswith("cuda")
        remote = self._ray.remote(TrainerRank).options(num_cpus=0, num_gpus=int(cuda))
        return [remote.remote() for _ in range(training.world_size)]

    async def _join(self, actors: RankActors) -> None:
        meeting = await actors.first("meet")
        spec = await asyncio.to_thread(self._ray.put, self._spec)
        arguments = [(spec, rank) for rank in range(len(actors))]
        await actors.dealt("join", arguments, meeting=meeting)

    async def close(self) -> None:
        """End all ranks; a write in flight is finished first."""
        actors, self._actors = self._actors, None
        if actors is not None:
            await actors.farewell()
        if self._ray is not None:
            self._ray = None
            await asyncio.to_thread(SESSION.release)

    @property
    def _ranks(self) -> RankActors:
        if self._actors is None:
            raise InvariantError("the sharded trainer is not started, or closed")
        return self._actors

    # --------------------------------------------------------------------------------- step

    async def begin_step(self, step: Step, /) -> None:
        self._interrupted = False
        await self._ranks.ordered("begin", step)

    async def accumulate(self, groups: Sequence[TrainGroup], /) -> None:
        number = next(self._numbers)
        try:
            dealt = await self._dealt(groups)
            arguments = [(groups, share) for share in dealt]
            await self._ranks.dealt("accumulate", arguments, number=number)
        except asyncio.CancelledError:
            self._interrupted = True
            self._ranks.tell("interrupt", number)
            raise

    async def _dealt(self, groups: Sequence[TrainGroup]) -> Shares:
        """What each rank is given: references to its rows, or their keys."""
        keys = [key for group in groups for key in group.keys]
        if self._spec.reader is not None:
            return self._divided(groups, await self._peeked(keys), items=keys)
        rows = await self._plane.get(keys)
        parts = self._divided(groups, [row_length(row) for row in rows], items=rows)
        return await asyncio.to_thread(lambda: [self._ray.put(part) for part in parts])

    async def _peeked(self, keys: Sequence[AttemptKey]) -> list[int]:
        """Lengths of rows, which ranks fetch in equal parts: most of them they will keep."""
        ranks = len(self._ranks)
        parts = await self._ranks.dealt("peek", [[keys[rank::ranks]] for rank in range(ranks)])
        return [parts[at % ranks][at // ranks] for at in range(len(keys))]

    def _divided(
        self, groups: Sequence[TrainGroup], lengths: Sequence[int], *, items: Sequence[object]
    ) -> list[list[object]]:
        cost = costs(groups, lengths, silent_too=self._spec.algorithm.kl_coef > 0)
        return [[items[at] for at in part] for part in shares(cost, len(self._ranks))]

    async def finish_step(self) -> StepOutcome:
        if self._interrupted:  # also covers a chunk cancelled before it reached the ranks
            raise InvariantError("finish_step refused: a chunk was interrupted; abort the step")
        outcomes: list[StepOutcome] = await self._ranks.ordered("finish")
        return _same("finish_step", outcomes)

    async def abort_step(self) -> None:
        self._interrupted = True
        await self._ranks.ordered("abort")

    # -------------------------------------------------------------------------------- state

    async def weights(self, incarnation: Incarnation, /) -> Weights:
        """`payload` is what the transfer published; `weight_transfer.fetch` makes it a state."""
        weights: Weights = (await self._ranks.ordered("weights", incarnation))[0]
        return weights

    async def stage(self) -> StagedShards:
        staged = StagedShards(next(self._numbers), self._ranks)
        await self._ranks.ordered("stage", staged.number, sorted(self._staged))
        self._staged[staged.number] = staged
        return staged

    async def digest(self) -> str:
        digests: list[str] = await self._ranks.ordered("digest")
        return _same("digest", digests)


def _anywhere(path: Path) -> Path:
    """`path` for ranks, which have another working directory."""
    return path.absolute()


def _same(what: str, values: Sequence[R]) -> R:
    """What all ranks say."""
    if any(value != values[0] for value in values):
        raise InvariantError(f"{what}: the ranks disagree: {values}")
    return values[0]
