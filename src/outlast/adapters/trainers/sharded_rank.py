"""One rank of a sharded trainer as it lives in a Ray actor: `ShardedCore` on a thread of its own.

Calls answer with a `Reply`, errors included: what a rank raises must reach the controller as what
it is. The controller orders the calls; only `interrupt` and `write` come beside another one.
May import: torch, its siblings, `weight_transfer`, `ports`; ray for the address of its node.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from torch import Tensor

from outlast.adapters.role_thread import RoleThread
from outlast.adapters.trainers.sharded_checkpoint import write_shards
from outlast.adapters.trainers.sharded_core import ShardedCore
from outlast.adapters.trainers.sharded_group import Meeting, Ranks, open_store
from outlast.adapters.weight_transfer import WeightTransfer, make_transfer
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.errors import InvariantError, OutlastError
from outlast.model.ids import AttemptKey, Incarnation, Step, TrainerVersion, WeightVersion
from outlast.ports import StepOutcome, TrainGroup, Weights
from outlast.rows import Row

P = ParamSpec("P")
R = TypeVar("R")


class RowReader(Protocol):
    """Fetches rows in another process than the plane's. Pickles; `fetch` blocks."""

    def fetch(self, keys: Sequence[AttemptKey], /) -> list[Row]:
        """The rows of `keys`, in order."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What every rank is made of."""

    directory: Path
    algorithm: AlgorithmSection
    training: TrainingSection
    temperature: float
    deterministic: bool
    transfer: str
    reader: RowReader | None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a call: a value, an error raised on purpose, or the traceback of a bug."""

    value: Any = None
    error: OutlastError | None = None
    bug: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the call raised."""
        return self.error is not None or self.bug is not None


def replying(
    method: Callable[Concatenate[TrainerRank, P], Awaitable[R]],
) -> Callable[Concatenate[TrainerRank, P], Awaitable[Reply]]:
    """Answer with a `Reply` whatever happens."""

    @functools.wraps(method)
    async def call(self: TrainerRank, /, *args: P.args, **kwargs: P.kwargs) -> Reply:
        try:
            return Reply(value=await method(self, *args, **kwargs))
        except OutlastError as error:
            return Reply(error=error)
        except Exception:  # boundary: a call from another process
            return Reply(bug=traceback.format_exc())

    return call


class TrainerRank:
    """See the module's docstring. A rank of nothing until `join`, and again after `leave`."""

    def __init__(self) -> None:
        self._store: object = None
        self._transfer: WeightTransfer | None = None
        self._rows: dict[AttemptKey, Row] = {}
        self._staged: dict[int, Mapping[str, Tensor]] = {}
        self._abandoned: dict[int, threading.Event] = {}

    # --------------------------------------------------------------------------------- life

    @replying
    async def meet(self) -> Meeting:
        """Rank 0 only: open the place where all ranks meet."""
        import ray

        address = ray.util.get_node_ip_address()
        self._store, meeting = await asyncio.to_thread(open_store, address)
        return meeting

    @replying
    async def join(self, spec: RankSpec, rank: int, *, meeting: Meeting) -> None:
        """Become one of the ranks; returns when all have come."""
        self._spec = spec
        self._thread = RoleThread("outlast-rank", threads=spec.training.threads)
        self._writer = RoleThread("outlast-checkpoint", threads=1)
        await self._thread(self._join, rank, meeting)

    def _join(self, rank: int, meeting: Meeting) -> None:
        spec, training = self._spec, self._spec.training
        self._ranks = Ranks(
            meeting,
            rank=rank,
            size=training.world_size,
            device=training.device,
            timeout_s=training.timeout_s,
        )
        self._core = ShardedCore(
            directory=spec.directory,
            algorithm=spec.algorithm,
            training=training,
            temperature=spec.temperature,
            deterministic=spec.deterministic,
            ranks=self._ranks,
        )
        if rank == 0:
            self._transfer = make_transfer(spec.transfer)

    @replying
    async def load(self, checkpoint: Path | None, version: TrainerVersion) -> None:
        await self._thread(self._core.load, checkpoint, version)

    @replying
    async def pid(self) -> int:
        """The process of this rank, on its node."""
        return os.getpid()

    @replying
    async def leave(self) -> None:
        """Finish a write in flight, remove what was published, and part from the others."""
        await self._writer.close()
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            await asyncio.to_thread(transfer.close)
        await self._thread(self._part)
        await self._thread.close()

    def _part(self) -> None:
        self._ranks.leave()
        del self._core, self._ranks
        self._store = None
        self._rows, self._staged, self._abandoned = {}, {}, {}

    # --------------------------------------------------------------------------------- step

    @replying
    async def begin(self, step: Step) -> None:
        self._abandoned.clear()
        self._rows.clear()
        await self._thread(self._core.begin, step)

    @replying
    async def peek(self, keys: Sequence[AttemptKey]) -> list[int]:
        """Fetch the rows of `keys` ahead; their lengths."""
        return await self._thread(self._peek, keys)

    def _peek(self, keys: Sequence[AttemptKey]) -> list[int]:
        self._rows = self._fetched(keys)
        return [row_length(self._rows[key]) for key in keys]

    @replying
    async def accumulate(
        self,
        groups: Sequence[TrainGroup],
        share: Sequence[Row] | Sequence[AttemptKey],
        *,
        number: int,
    ) -> None:
        """Add the gradients of a chunk; `share` are the rows of this rank, or their keys."""
        abandoned = self._abandoned.setdefault(number, threading.Event())
        await self._thread(self._accumulate, groups, share, abandoned=abandoned)

    def _accumulate(
        self,
        groups: Sequence[TrainGroup],
        share: Sequence[Row] | Sequence[AttemptKey],
        *,
        abandoned: threading.Event,
    ) -> None:
        rows = {item.key: item for item in share if isinstance(item, Row)}
        keys = [item for item in share if not isinstance(item, Row)]
        ahead, self._rows = self._rows, {}
        rows |= {key: ahead[key] for key in keys if key in ahead}
        rows |= self._fetched([key for key in keys if key not in rows])
        self._core.accumulate(groups, rows, abandoned=abandoned)

    def _fetched(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Row]:
        if not keys:
            return {}
        if self._spec.reader is None:
            raise InvariantError(f"rank {self._ranks.rank} got keys, but no reader of rows")
        return dict(zip(keys, self._spec.reader.fetch(keys), strict=True))

    async def interrupt(self, number: int) -> None:
        """Let all ranks end the chunk of this number before their next micro-batch."""
        self._abandoned.setdefault(number, threading.Event()).set()

    @replying
    async def finish(self) -> StepOutcome:
        return await self._thread(self._core.finish)

    @replying
    async def abort(self) -> None:
        await self._thread(self._core.abort)

    # -------------------------------------------------------------------------------- state

    @replying
    async def weights(self, incarnation: Incarnation) -> Weights | None:
        """Gathered on all ranks, published by rank 0."""
        return await self._thread(self._publish, incarnation)

    def _publish(self, incarnation: Incarnation) -> Weights | None:
        state = self._core.weights()
        if self._transfer is None:
            return None
        version = WeightVersion(incarnation, self._core.version)
        return Weights(version=version, payload=self._transfer.publish(state, version))

    @replying
    async def digest(self) -> str:
        return await self._thread(self._core.digest)

    @replying
    async def stage(self, number: int, alive: Collection[int]) -> None:
        """Keep a private copy under `number`; copies that are not `alive` any more are let go."""
        self._staged = {n: copy for n, copy in self._staged.items() if n in alive}
        self._staged[number] = await self._thread(self._core.staged)

    @replying
    async def write(self, number: int, directory: Path) -> None:
        """Write the copy `number`, beside training, and let it go."""
        tensors = self._staged.pop(number)
        await self._writer(write_shards, directory, tensors, group=self._ranks.checkpoint)


def row_length(row: Row) -> int:
    """Prompt and response tokens together."""
    return len(row.prompt_ids) + len(row.response_ids)
