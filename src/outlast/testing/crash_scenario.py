"""A scripted controller life over the real durable layer, and what it promised while it lived.

Small enough to be run some ten thousand times: groups of one row, no engine, no trainer. It goes
through everything that touches the disk: lock, adoption, segments, consumption log, snapshots,
trainer checkpoints, retention, sweep, restore. May import: `durable`, `config`, `testing`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath

import msgspec
import numpy as np

from outlast.config.load import parse_recipe
from outlast.durable import names
from outlast.durable.anchors import write_bootstrap
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cutcodec import LoadedCut
from outlast.durable.files import Files, make_directory
from outlast.durable.fingerprint import Fingerprint, Identities, fingerprint_of
from outlast.durable.inspection import CutReader
from outlast.durable.lineage import Adoption, adopt, write_end
from outlast.durable.listing import read_run
from outlast.durable.lock import RunLock, acquire
from outlast.durable.manifest import FORMAT, BootstrapRecord, FileEntry, encode
from outlast.durable.publish import TmpTree
from outlast.durable.restore import Plan, RestoreMode, Resume, plan_restore
from outlast.durable.segments import Held, SegmentStore
from outlast.durable.snapshots import Publisher
from outlast.errors import DiskError, OutlastError
from outlast.model.cursor import CursorState, DatasetOrder
from outlast.model.cut import (
    GENESIS,
    Anchor,
    AnchorKind,
    Cut,
    SamplerState,
    SettledCounts,
)
from outlast.model.groups import Group, PromptRef
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    Sequence,
    SiblingIndex,
    Step,
    TrainerVersion,
)
from outlast.model.journal import Applied
from outlast.rows import Row, row_digest
from outlast.testing.records import make_group
from outlast.world import Identity, Perhaps, World, no_mark

RUN_DIR = PurePosixPath("/runs/demo")
RECIPE = b"seed: 1\n"
SIZE, SEED = 64, 7
_ORDER = DatasetOrder(seed=SEED, size=SIZE)
KEEP_SNAPSHOTS = 2


class _Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1_700_000_000.0


class _Inline:
    async def __call__(self, work: Callable[..., object], /, *args: object, **kw: object) -> object:
        return work(*args, **kw)


def make_world(*, pid: int = 1, perhaps: Perhaps = no_mark) -> World:
    """A world without time or threads."""
    return World(
        clock=_Clock(),
        offload=_Inline(),  # type: ignore[arg-type]  # typed by its use, not by ParamSpec
        random=random.Random(pid),
        identity=Identity(host="here", pid=pid),
        perhaps=perhaps,
    )


@cache
def current_fingerprint() -> Fingerprint:
    """What every life of the scenario runs under."""
    identities = Identities(model="m", tokenizer="t", dataset="d", environment="e")
    return fingerprint_of(parse_recipe("", (), source="crash scenario").recipe, identities)


@cache
def _row(group: int, incarnation: int) -> Held:
    rng = np.random.default_rng(group)
    length = 2 + group % 3
    key = AttemptKey(GroupId(group), SiblingIndex(0), Incarnation(incarnation), 0)
    row = Row(
        key=key,
        prompt_ids=rng.integers(0, 50, 2).astype(np.int32),
        response_ids=rng.integers(0, 50, length).astype(np.int32),
        logprobs=rng.random(length).astype(np.float32),
        weight_versions=np.zeros(length, np.int32),
        loss_mask=np.ones(length, np.bool_),
        reward=1.0,
        mask_sample=False,
    )
    return Held(row, row_digest(row))


@cache
def _group(group: int, incarnation: int) -> Group:
    epoch, index = _ORDER.at(group)
    made = make_group(group, versions=(0,), prompt=PromptRef(dataset="d", epoch=epoch, index=index))
    held, sibling = _row(group, incarnation), made.siblings[0]
    assert held.row is not None and sibling.receipt is not None
    receipt = msgspec.structs.replace(sibling.receipt, key=held.row.key, digest=held.digest)
    attempt = msgspec.structs.replace(sibling.attempt, key=held.row.key)
    sealed = msgspec.structs.replace(sibling, attempt=attempt, receipt=receipt)
    return msgspec.structs.replace(made, siblings=(sealed,))


def history_at(version: int, incarnation: int) -> str:
    """Histories differ between incarnations, as they do when a step is trained anew."""
    return GENESIS if version == 0 else f"{incarnation:032x}{version:032x}"


@dataclass
class Promises:
    """What a run has told the outside; a crash must not break any of it."""

    cuts: dict[int, Cut] = field(default_factory=dict)
    """Everything ever handed to publication, by sequence."""
    acknowledged: int = 0
    """Newest sequence whose publication returned."""
    spent: int = 0
    """Newest sequence whose live name has been visible."""
    adopted: int = 0
    """Newest incarnation whose adoption returned."""

    def notice(self, change: str) -> None:
        """Learn from a change on the disk that a live name has become visible."""
        operation, _, path = change.partition(" ")
        name = path.rsplit("/", 1)[-1]
        number, version = names.parse_snapshot(name), names.parse_checkpoint(name)
        if operation != "rename" or (number is None and version is None):
            return
        self.spent = max(self.spent, number or max(self.cuts))

    def frozen(self) -> Promises:
        return replace(self, cuts=dict(self.cuts))


_BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS)


@dataclass
class _State:
    """The model side, reduced to what a cut needs."""

    groups: dict[int, Group] = field(default_factory=dict)
    held: dict[AttemptKey, Held] = field(default_factory=dict)
    drawn: int = 0
    trained: int = 0
    anchor: Anchor = _BOOTSTRAP
    parent: Sequence | None = None


class Life:
    """One incarnation. Methods raise what the durable layer raises."""

    def __init__(
        self, files: Files, promises: Promises, *, pid: int = 1, perhaps: Perhaps = no_mark
    ) -> None:
        self.files = files
        self.promises = promises
        self.world = make_world(pid=pid, perhaps=perhaps)
        self.state = _State()
        self.plan: Plan | None = None
        self.loaded: LoadedCut | None = None
        self.lock: RunLock | None = None
        self.adoption: Adoption | None = None
        self.keep = KEEP_SNAPSHOTS
        self.warnings: list[str] = []

    # ----------------------------------------------------------------------------- start

    def restore(self) -> None:
        """Plan, verify and load; changes nothing on disk."""
        listing = read_run(self.files, RUN_DIR, verify="manifest")
        reader = CutReader(self.files, RUN_DIR)
        self.plan = plan_restore(
            listing,
            mode=RestoreMode.LATEST,
            fingerprint=current_fingerprint(),
            inspect=reader.inspector,
            max_replay_steps=8,
        )
        self.listing = listing
        number = max((r.number for r in listing.incarnations), default=0) + 1
        self.store = SegmentStore(
            self.files, RUN_DIR / names.SEGMENTS, incarnation=Incarnation(number)
        )
        if isinstance(self.plan, Resume):
            self.loaded = reader.loaded(self.plan.cut)
            held = self.store.load(self.loaded.rows, self.loaded.cut.row_keys)
            self._continue(self.loaded.cut, self.plan.anchor, held)

    def _continue(self, cut: Cut, anchor: Anchor, held: dict[AttemptKey, Held]) -> None:
        self.state = _State(
            groups={group.id: group for group in cut.groups},
            held=held,
            drawn=cut.drawn,
            trained=cut.settled.trained,
            anchor=anchor,
            parent=cut.sequence,
        )

    def adopt(self) -> None:
        """From here on the run directory is ours."""
        restored = None if self.loaded is None else self.loaded.manifest
        self.adoption = adopt(
            self.files, RUN_DIR, listing=self.listing, restored=restored, world=self.world
        )
        record = self.adoption.record
        self.promises.adopted = record.number
        self.sequence = int(record.first_sequence)
        self.log = ConsumptionLog(
            self.files,
            RUN_DIR / names.CONSUMPTION,
            incarnation=record.number,
            fence=self.adoption.fence,
        )
        self.publisher = Publisher(
            self.files,
            RUN_DIR,
            run=self.adoption.run.run,
            incarnation=record.number,
            fence=self.adoption.fence,
            log=self.log,
            world=self.world,
        )
        identity = current_fingerprint().identities
        bootstrap = BootstrapRecord(
            format=FORMAT,
            model=identity.model,
            tokenizer=identity.tokenizer,
            fingerprint=current_fingerprint().digest,
        )
        write_bootstrap(self.files, RUN_DIR, record=bootstrap)

    def sweep(self) -> None:
        self.warnings += self.publisher.sweep()
        self.store.adopt()

    def start(self) -> None:
        """The whole start-up sequence of DESIGN 5."""
        self.take_lock()
        self.restore()
        self.adopt()
        self.sweep()

    def take_lock(self) -> None:
        make_directory(self.files, RUN_DIR.parent)
        make_directory(self.files, RUN_DIR)
        self.lock = acquire(self.files, RUN_DIR, world=self.world)

    # ------------------------------------------------------------------------------ work

    @property
    def incarnation(self) -> Incarnation:
        assert self.adoption is not None
        return self.adoption.record.number

    def draw(self, count: int) -> None:
        """Seal `count` new groups of one row each, in one batch."""
        numbers = range(self.state.drawn, self.state.drawn + count)
        rows = [_row(number, self.incarnation) for number in numbers]
        self.store.append(rows)
        for number, held in zip(numbers, rows, strict=True):
            assert held.row is not None
            self.state.held[held.row.key] = held
            self.state.groups[number] = _group(number, self.incarnation)
        self.state.drawn += count

    def snapshot(self) -> None:
        """Publish a periodic snapshot, then retain."""
        cut = self._cut(self.state.anchor)
        tree = self.publisher.open_snapshot(cut.sequence)
        try:
            saved = self._save(tree, link=True)
            self.publisher.publish_snapshot(
                tree, cut=cut, rows=saved, fingerprint=_fingerprint(), recipe=RECIPE
            )
        except DiskError:
            tree.abandon()
            raise
        self._acknowledge(cut)
        self.warnings += self.publisher.retain_snapshots(keep_latest_k=self.keep)

    def step(self, consumed: int) -> None:
        """Train the oldest `consumed` groups, publish ``step_N`` with its bundled cut, retain."""
        version = TrainerVersion(self.state.anchor.version + 1)
        history = history_at(version, self.incarnation)
        victims = sorted(self.state.groups)[:consumed]
        ids = tuple(GroupId(number) for number in victims)
        refs = tuple(self.state.groups[number].prompt for number in victims)
        self.log.append(Applied(step=Step(version), groups=ids, refs=refs, history=history))
        keys = [r.key for n in victims for r in self.state.groups[n].receipts()]
        anchor = Anchor(kind=AnchorKind.CHECKPOINT, version=version, history=history)
        before, self.state = self.state, self._trained(victims, keys, anchor)
        cut = self._cut(anchor)
        try:
            tree = self.publisher.open_checkpoint(version, sequence=cut.sequence)
        except DiskError:
            self.state = before
            raise
        try:
            self._write_shards(tree, version)
            saved = self._save(tree, link=False)
            self.publisher.publish_checkpoint(
                tree, cut=cut, rows=saved, fingerprint=_fingerprint(), recipe=RECIPE, metrics={}
            )
        except DiskError:
            tree.abandon()
            self.state = before  # as if the step had not been taken: nothing durable covers it
            raise
        self._acknowledge(cut)
        self.store.release(keys)
        self.warnings += self.publisher.retain_checkpoints(pinned=(), keep_top_k=0)

    def _trained(self, victims: list[int], keys: list[AttemptKey], anchor: Anchor) -> _State:
        return replace(
            self.state,
            groups={n: g for n, g in self.state.groups.items() if n not in victims},
            held={k: h for k, h in self.state.held.items() if k not in keys},
            trained=self.state.trained + len(victims),
            anchor=anchor,
        )

    def _write_shards(self, tree: TmpTree, version: int) -> None:
        """A foreign writer that syncs nothing: sealing has to."""
        directory = tree.directory / names.TRAINER / "rank_0"
        self.files.mkdir(directory)
        for name in ("shard_0.bin", "shard_1.bin"):
            writer = self.files.create(directory / name)
            writer.write(f"weights of version {version} in {name}".encode())
            writer.close()

    def _save(self, tree: TmpTree, *, link: bool) -> tuple[FileEntry, ...]:
        rows = self.publisher.rows_directory(tree)
        self.files.mkdir(rows)
        return self.store.save(self.state.held, rows, link=link)

    def _acknowledge(self, cut: Cut) -> None:
        self.promises.acknowledged = cut.sequence
        self.state.parent = cut.sequence

    def _cut(self, anchor: Anchor) -> Cut:
        sequence = Sequence(self.sequence)
        self.sequence += 1
        state = self.state
        cut = Cut(
            sequence=sequence,
            incarnation=self.incarnation,
            parent=state.parent,
            anchor=anchor,
            trainer_version=anchor.version,
            history=anchor.history,
            log=self.log.position,
            dataset_size=SIZE,
            dataset_seed=SEED,
            cursor=CursorState(epoch=0, position=state.drawn, drawn=state.drawn, exhausted=False),
            groups=tuple(state.groups[number] for number in sorted(state.groups)),
            reserve=(),
            sampler=SamplerState(name="in_order", admitted=0, credited=0, batches=0, own={}),
            settled=SettledCounts(trained=state.trained, dropped={}),
            prefixes=(),
            applied_steps=(),
            shortfalls={},
            owed={},
            skipped_prompts=0,
            consecutive_dropped=0,
            next_position=state.drawn,
            last_done={},
            tokens_per_s=0.0,
            metrics={},
        )
        self.promises.cuts[sequence] = cut
        return cut

    def end(self) -> None:
        write_end(
            self.files,
            RUN_DIR,
            number=self.incarnation,
            reason="done",
            last_cut=self.state.parent,
            ended=self.world.clock.wall(),
        )
        self.release_lock()

    def release_lock(self) -> None:
        self.log.close()
        self.store.close()
        assert self.lock is not None
        self.lock.release()


@cache
def _fingerprint() -> bytes:
    return encode(current_fingerprint())


Script = Callable[[Life], None]


def short_script(life: Life) -> None:
    """Two snapshots and a trainer checkpoint, with retention of each."""
    life.keep = 1
    life.draw(3)
    life.snapshot()
    life.draw(2)
    life.snapshot()
    life.step(2)


def long_script(life: Life) -> None:
    """Snapshots and checkpoints until every kind of retention has had a victim."""
    life.keep = 1
    life.draw(3)
    life.snapshot()
    life.draw(2)
    life.snapshot()
    life.step(2)
    life.draw(2)
    life.snapshot()
    life.step(1)
    life.snapshot()
    life.step(3)
    life.draw(1)
    life.snapshot()
    life.end()


def tolerant(script: Callable[[Life], None]) -> Callable[[Life], list[OutlastError]]:
    """`script` with each operation allowed to fail, as the runtime goes on after a failed save."""

    def run(life: Life) -> list[OutlastError]:
        proxy = _Tolerant(life)
        script(proxy)  # type: ignore[arg-type]  # the same operations
        return proxy.errors

    return run


class _Tolerant:
    def __init__(self, life: Life) -> None:
        self._life = life
        self.keep = life.keep
        self.errors: list[OutlastError] = []

    def draw(self, count: int) -> None:
        self._life.draw(count)

    def snapshot(self) -> None:
        self._life.keep = self.keep
        self._try(self._life.snapshot)

    def step(self, consumed: int) -> None:
        self._try(lambda: self._life.step(consumed))

    def end(self) -> None:
        self._try(self._life.end)

    def _try(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except DiskError as error:
            self.errors.append(error)
