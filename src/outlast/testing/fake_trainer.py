"""A trainer whose weights are a running digest of what it was given.

weights(s) = sha256(weights(s-1), s, sorted group digests), and a group digest covers the content
of its rows, rewards and keep flags: the final digest *is* the training history, whatever crashed
in between (S1, S11). Passes the trainer contract.
May import: `ports`, `durable.files`, `rows`, `testing.scripts`, `testing.world`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from outlast.durable.files import Files, write_file
from outlast.errors import InvariantError, RefusedState
from outlast.model.ids import AttemptKey, GroupId, Incarnation, Step, TrainerVersion, WeightVersion
from outlast.ports import DataPlane, StagedCheckpoint, StepOutcome, TrainGroup, Weights
from outlast.rows import Row, row_digest
from outlast.testing.scripts import TrainerFault, TrainerProfile
from outlast.testing.world import Pulse

INITIAL = hashlib.sha256(b"initial weights").hexdigest()


class TrainerBroke(RuntimeError):
    """A scripted fault of the trainer: not an error of Outlast, so it ends the process."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A group as the trainer saw it: what was really trained, whatever the records say."""

    id: GroupId
    keys: tuple[AttemptKey, ...]
    digests: tuple[str, ...]
    oldest: int
    """Smallest weight version over all tokens."""
    newest: int
    chunk: int
    """Which call of `accumulate` in its step it came with, from 0."""


class Trained(Protocol):
    """Told of every optimizer step: what it really saw, and the weights it gave."""

    def __call__(self, step: Step, groups: tuple[SeenGroup, ...], *, digest: str) -> None: ...


Loaded = Callable[[TrainerVersion, str], None]


def _unwatched(step: Step, groups: tuple[SeenGroup, ...], *, digest: str) -> None:
    """Nobody watches."""


class FakeTrainer:
    """`Trainer` for simulations; one object per life."""

    def __init__(
        self,
        plane: DataPlane,
        files: Files,
        *,
        profile: TrainerProfile | None = None,
        pulse: Pulse | None = None,
        seed: int = 0,
    ) -> None:
        self._plane = plane
        self._files = files
        self._profile = profile or TrainerProfile()
        self._pulse = pulse or Pulse()
        self._rng = random.Random(f"trainer/{seed}")
        self._version = TrainerVersion(0)
        self._digest = INITIAL
        self._open: Step | None = None
        self._chunks = 0
        self._seen: list[SeenGroup] = []
        self._content: list[str] = []
        self._spread: list[float] = []
        self.on_trained: Trained = _unwatched
        self.on_loaded: Loaded = lambda version, digest: None

    async def start(self, checkpoint: Path | None, version: TrainerVersion, /) -> None:
        await self._pause(0.1)
        self._version, self._digest = version, INITIAL
        if checkpoint is not None:
            state = json.loads(self._files.read(PurePosixPath(checkpoint) / "state.json"))
            if state["version"] != version:
                raise RefusedState(f"{checkpoint} holds version {state['version']}, not {version}")
            self._digest = state["digest"]
        elif version:
            raise InvariantError(f"version {version} without a checkpoint")
        self.on_loaded(version, self._digest)

    async def close(self) -> None:
        self._pulse.check()

    async def begin_step(self, step: Step, /) -> None:
        self._pulse.check()
        if self._open is not None or step != self._version + 1:
            raise InvariantError(f"begin of step {step} at version {self._version}")
        self._open, self._chunks = step, 0
        self._seen, self._content, self._spread = [], [], []

    async def accumulate(self, groups: Sequence[TrainGroup], /) -> None:
        self._pulse.check()
        step = self._opened()
        for group in groups:
            rows = await self._plane.get(group.keys)
            self._seen.append(_seen(group, rows, chunk=self._chunks))
            self._content.append(_content(group, rows))
            self._spread.append(max(group.rewards) - min(group.rewards))
        self._chunks += 1
        await self._pause(self._profile.chunk_s)
        if self._profile.strikes(step, TrainerFault.FAILS_IN_CHUNK):
            raise TrainerBroke(f"step {step}: out of memory in a chunk")

    async def finish_step(self) -> StepOutcome:
        self._pulse.check()
        step, profile = self._opened(), self._profile
        if profile.strikes(step, TrainerFault.HANGS):
            await asyncio.get_running_loop().create_future()
        slow = profile.strikes(step, TrainerFault.SLOW)
        await self._pause(profile.finish_s * (100 if slow else 1))
        if profile.strikes(step, TrainerFault.FAILS_BEFORE):
            raise TrainerBroke(f"step {step}: lost a device before the update")
        text = "/".join((self._digest, str(step), *sorted(self._content)))
        self._digest = hashlib.sha256(text.encode()).hexdigest()
        self._version, self._open = TrainerVersion(step), None
        self.on_trained(step, tuple(self._seen), digest=self._digest)
        await self._pause(0.05)
        if profile.strikes(step, TrainerFault.FAILS_AFTER):
            raise TrainerBroke(f"step {step}: lost a device after the update")
        return StepOutcome(step=step, metrics=_metrics(self._spread))

    async def abort_step(self) -> None:
        self._pulse.check()
        self._opened()
        self._open, self._seen, self._content, self._spread = None, [], [], []

    async def weights(self, incarnation: Incarnation, /) -> Weights:
        self._pulse.check()
        pair = WeightVersion(incarnation=incarnation, version=self._version)
        payload = self._digest
        await self._pause(0.05)
        return Weights(version=pair, payload=payload)

    async def stage(self) -> StagedCheckpoint:
        self._pulse.check()
        version = self._version
        await self._pause(self._profile.stage_s)
        # Like a copy under way: a step that does not wait for it would tear it (S7).
        return FakeStaged(self, version, self._digest)

    async def digest(self) -> str:
        self._pulse.check()
        return self._digest

    async def write(self, directory: Path, version: TrainerVersion, *, digest: str) -> None:
        """Write a staged copy, in two files with time in between."""
        state = json.dumps({"version": int(version), "digest": digest}).encode()
        place = PurePosixPath(directory)
        await self._pause(self._profile.write_s)
        write_file(self._files, place / "state.json", data=state)
        if self._profile.strikes(version, TrainerFault.FAILS_IN_WRITE):
            raise TrainerBroke(f"checkpoint of step {version}: lost a device while writing")
        await self._pause(self._profile.write_s)
        write_file(self._files, place / "optimizer.bin", data=digest.encode() * 4)

    def _opened(self) -> Step:
        if self._open is None:
            raise InvariantError("no step is open")
        return self._open

    async def _pause(self, longest_s: float) -> None:
        self._pulse.check()
        await asyncio.sleep(longest_s * self._rng.random())
        self._pulse.check()


@dataclass(frozen=True, slots=True)
class FakeStaged:
    """A private copy waiting to be written."""

    trainer: FakeTrainer
    version: TrainerVersion
    digest: str

    async def write(self, directory: Path, /) -> None:
        await self.trainer.write(directory, self.version, digest=self.digest)


def _metrics(spread: Sequence[float]) -> dict[str, float]:
    """Zero for silent groups, and the same however the step was split."""
    norm = math.fsum(spread) / max(1, len(spread))
    return {"loss": -norm / 2, "grad_norm": norm}


def _seen(group: TrainGroup, rows: Sequence[Row], *, chunk: int) -> SeenGroup:
    versions = [int(v) for row in rows for v in row.weight_versions]
    return SeenGroup(
        id=group.id,
        keys=tuple(row.key for row in rows),
        digests=tuple(row_digest(row) for row in rows),
        oldest=min(versions),
        newest=max(versions),
        chunk=chunk,
    )


def _content(group: TrainGroup, rows: Sequence[Row]) -> str:
    parts = [*(row_digest(row) for row in rows), repr(group.rewards), repr(group.keep)]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()
