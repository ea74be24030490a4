"""The embedded trainer: port `Trainer` on torch, one model on one device, on a thread of its own.

The event loop only fetches rows and waits. A cancelled `accumulate` stops at its next micro-batch,
so that SIGTERM does not wait for a whole chunk; the step must then be aborted.
May import: torch, `ports`, its core.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from outlast.adapters.role_thread import RoleThread
from outlast.adapters.torch_model import resolve_model_directory
from outlast.adapters.trainers.torch_checkpoint import write_checkpoint
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.adapters.trainers.torch_schedule import check_schedule
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.errors import InvariantError
from outlast.model.ids import Incarnation, Step, TrainerVersion, WeightVersion
from outlast.ports import DataPlane, StepOutcome, TrainGroup, Weights


class StagedTensors:
    """A private copy of trainer state; port `StagedCheckpoint`."""

    def __init__(self, tensors: Mapping[str, Tensor], thread: RoleThread) -> None:
        self._tensors: Mapping[str, Tensor] | None = tensors
        self._thread = thread

    async def write(self, directory: Path, /) -> None:
        """Write once; the copy is let go afterwards. Raises DiskFull or DiskError."""
        if self._tensors is None:
            raise InvariantError(f"checkpoint {directory}: this staged copy was already written")
        tensors, self._tensors = self._tensors, None
        await self._thread(write_checkpoint, directory, tensors)


class TorchTrainer:
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
    ) -> None:
        """`temperature` is that of generation: both sides must mean the same distribution."""
        check_schedule(training)
        self.directory: Path = resolve_model_directory(model_path)
        self._plane = plane
        self._core = TrainerCore(
            directory=self.directory,
            algorithm=algorithm,
            training=training,
            temperature=temperature,
            deterministic=deterministic,
        )
        self._thread = RoleThread("outlast-trainer", threads=training.threads)
        self._writer = RoleThread("outlast-checkpoint", threads=1)
        self._abandoned = threading.Event()

    async def start(self, checkpoint: Path | None, version: TrainerVersion, /) -> None:
        """Raises NotRestorable or CorruptData when the checkpoint does not fit the recipe."""
        await self._thread(self._core.load, checkpoint, version)

    async def close(self) -> None:
        """End both threads; a write in flight is finished first."""
        self._abandoned.set()
        await self._thread.close()
        await self._writer.close()

    async def begin_step(self, step: Step, /) -> None:
        self._abandoned = threading.Event()
        await self._thread(self._core.begin, step)

    async def accumulate(self, groups: Sequence[TrainGroup], /) -> None:
        abandoned = self._abandoned
        keys = [key for group in groups for key in group.keys]
        rows = dict(zip(keys, await self._plane.get(keys), strict=True))
        try:
            await self._thread(self._core.accumulate, groups, rows, abandoned=abandoned)
        except asyncio.CancelledError:
            abandoned.set()
            raise

    async def finish_step(self) -> StepOutcome:
        if self._abandoned.is_set():  # also covers a chunk cancelled before it began
            raise InvariantError("finish_step refused: a chunk was interrupted; abort the step")
        return await self._thread(self._core.finish)

    async def abort_step(self) -> None:
        self._abandoned.set()
        await self._thread(self._core.abort)

    async def weights(self, incarnation: Incarnation, /) -> Weights:
        """`payload` maps Hugging Face names to float32 CPU tensors; tied ones appear once."""
        return await self._thread(self._weights, incarnation)

    def _weights(self, incarnation: Incarnation) -> Weights:
        version = WeightVersion(incarnation, self._core.version)  # read with the copy, not before
        return Weights(version=version, payload=self._core.weights())

    async def stage(self) -> StagedTensors:
        return StagedTensors(await self._thread(self._core.staged), self._writer)

    async def digest(self) -> str:
        return await self._thread(self._core.digest)
