"""A run with thousands of buffered groups, built through the real transitions, for benchmarks.

Rows hold `row_bytes` bytes of token columns each. May import: `runtime`, `durable`, `adapters`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from outlast.adapters.planes.memory import MemoryPlane
from outlast.durable import lineage
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.files import PosixFiles
from outlast.durable.listing import read_run
from outlast.durable.names import RunPaths
from outlast.durable.snapshots import Publisher
from outlast.model.cut import GENESIS, Anchor, AnchorKind
from outlast.model.groups import Group, Receipt, RecoveryLevel
from outlast.model.ids import AttemptKey, GroupId, Incarnation, SiblingIndex, TrainerVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.plan import RunPlan
from outlast.model.sampler_kinds import WeightFifo
from outlast.model.state import RecoveryState
from outlast.rows import Row
from outlast.runtime.board import Board, InFlight
from outlast.runtime.snapshot import SnapshotPump, SnapshotSettings
from outlast.runtime.store import RetentionSettings, RunStore
from outlast.telemetry.bus import Bus
from outlast.telemetry.events import AnyEvent, SnapshotPublished
from outlast.world import World, real_world

FILES = PosixFiles()
SIBLINGS = 16
PROMPT_TOKENS = 128
BYTES_PER_TOKEN = 13
"""Of a response: id, logprob and version of four bytes each, and the loss mask."""
PROMPTS_PER_STEP = 64
VERSION = TrainerVersion(0)


class RowMaker:
    """Rows of random tokens; equal seeds give equal rows."""

    def __init__(self, row_bytes: int, *, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._tokens = max(1, (row_bytes - 4 * PROMPT_TOKENS) // BYTES_PER_TOKEN)

    def row(self, key: AttemptKey) -> Row:
        tokens, rng = self._tokens, self._rng
        return Row(
            key=key,
            prompt_ids=rng.integers(0, 50_000, PROMPT_TOKENS, dtype=np.int32),
            response_ids=rng.integers(0, 50_000, tokens, dtype=np.int32),
            logprobs=rng.random(tokens, dtype=np.float32),
            weight_versions=np.zeros(tokens, dtype=np.int32),
            loss_mask=np.ones(tokens, dtype=np.bool_),
            reward=1.0,
            mask_sample=False,
        )

    def rows(self, count: int, *, group: int = 0) -> list[Row]:
        """`count` rows of groups from `group` on."""
        keys = (
            AttemptKey(
                group=GroupId(group + n // SIBLINGS),
                sibling=SiblingIndex(n % SIBLINGS),
                incarnation=Incarnation(1),
                n=0,
            )
            for n in range(count)
        )
        return [self.row(key) for key in keys]


@dataclass(slots=True)
class Scene:
    """One life on a real disk: a board full of groups, its plane, and its snapshot pump."""

    board: Board
    plane: MemoryPlane
    pump: SnapshotPump
    maker: RowMaker
    published: list[SnapshotPublished]

    async def fill(self, groups: int) -> None:
        """Admit, generate, seal and buffer `groups` more groups."""
        for start in range(0, groups, PROMPTS_PER_STEP):
            held: list[Group] = []
            for _ in range(min(PROMPTS_PER_STEP, groups - start)):
                held += self.board.state.admit(VERSION)
            await self._seal(held)

    async def _seal(self, groups: Sequence[Group]) -> None:
        state = self.board.state
        keys = [
            state.dispatch(group.id, sibling.index, version=VERSION)
            for group in groups
            for sibling in group.siblings
        ]
        rows = [self.maker.row(key) for key in keys]
        digests = await self.plane.put(rows)
        for row, digest in zip(rows, digests, strict=True):
            state.seal(_receipt(row, digest))
            self.board.sealed_since_cut[row.key] = len(row.response_ids)
        for group in groups:
            state.complete(group.id)
            state.commit(group.id, rewards=(1.0,) * SIBLINGS, keep=(True,) * SIBLINGS)

    def fly(self, siblings: int) -> None:
        """Put `siblings` attempts in flight."""
        state, board = self.board.state, self.board
        for _ in range(siblings // SIBLINGS):
            for group in state.admit(VERSION):
                for sibling in group.siblings:
                    key = state.dispatch(group.id, sibling.index, version=VERSION)
                    board.inflight[key] = InFlight(started=board.world.clock.monotonic())

    async def snapshot(self) -> SnapshotPublished:
        """One real snapshot, published."""
        await self.pump.attempt()
        return self.published[-1]

    async def close(self) -> None:
        await self.plane.close()


def make_scene(run_dir: Path, *, groups: int, row_bytes: int) -> Scene:
    """An adopted run in `run_dir` with room for `groups` groups."""
    world, path = real_world(seed=0), PurePosixPath(run_dir.absolute())
    run_dir.mkdir(parents=True)
    listing = read_run(FILES, path, verify="names")
    adoption = lineage.adopt(FILES, path, listing=listing, restored=None, world=world)
    number, fence = adoption.record.number, adoption.fence
    paths = RunPaths(path)
    log = ConsumptionLog(FILES, paths.consumption, incarnation=number, fence=fence)
    publisher = Publisher(
        FILES, path, run=adoption.run.run, incarnation=number, fence=fence, log=log, world=world
    )
    published: list[SnapshotPublished] = []

    def keep(event: AnyEvent, _: float) -> None:
        if isinstance(event, SnapshotPublished):
            published.append(event)

    bus = Bus(world.clock, keep)
    plane = MemoryPlane(FILES, paths.segments, incarnation=number, offload=world.offload)
    board = _board(world, bus, log=log, groups=groups)
    store = RunStore(
        world,
        bus,
        publisher=publisher,
        retention=RetentionSettings(keep_latest_k=2),
        fingerprint=b"{}\n",
        recipe=b"",
        duties=lambda: None,
    )
    settings = SnapshotSettings(interval_s=1.0, failures_max=1, replay=False)
    pump = SnapshotPump(board, settings, plane=plane, store=store)
    return Scene(board, plane, pump, RowMaker(row_bytes), published)


def _board(world: World, bus: Bus, *, log: ConsumptionLog, groups: int) -> Board:
    capacity = groups + 4 * PROMPTS_PER_STEP
    plan = RunPlan(
        prompts_per_step=PROMPTS_PER_STEP,
        siblings=SIBLINGS,
        capacity=capacity,
        level=lambda _: RecoveryLevel.TOKEN,
        dataset="bench",
        dataset_size=max(1_000, capacity),
        seed=0,
        epochs=1_000,
    )
    staleness = capacity // PROMPTS_PER_STEP + 1
    sampler = WeightFifo(prompts_per_step=PROMPTS_PER_STEP, max_staleness=staleness)
    state = RecoveryState(plan, sampler=sampler, journal=log, incarnation=Incarnation(1))
    return Board(
        world=world,
        bus=bus,
        state=state,
        anchor=Anchor(kind=AnchorKind.BOOTSTRAP, version=VERSION, history=GENESIS),
        parent=None,
        next_sequence=CutSequence(1),
    )


def _receipt(row: Row, digest: str) -> Receipt:
    return Receipt(
        key=row.key,
        digest=digest,
        reward=row.reward,
        prompt_tokens=len(row.prompt_ids),
        response_tokens=len(row.response_ids),
        min_version=VERSION,
        max_version=VERSION,
        truncated=False,
        mask_sample=False,
    )


def write_rate(path: Path, size: int) -> float:
    """Bytes per second of one sequential, synced write: what this disk can do at the moment."""
    block = random.Random(0).randbytes(1 << 20)
    began = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(max(1, size >> 20)):
            file.write(block)
        FILES.fsync_file(PurePosixPath(path))
    seconds = time.perf_counter() - began
    written = path.stat().st_size
    path.unlink()
    return written / seconds
