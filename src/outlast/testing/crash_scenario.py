"""A scripted controller life over the real durable layer, and what it promised while it lived.

Small enough to be run some ten thousand times: groups of one row, no engine, no trainer. It goes
through everything that touches the disk: lock, adoption, segments, consumption log, prefixes,
snapshots, trainer checkpoints, retention, sweep, restore.
May import: `durable`, `config`, `testing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache

from outlast.durable import names
from outlast.durable.anchors import write_bootstrap
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cutcodec import LoadedCut
from outlast.durable.files import Files, make_directory
from outlast.durable.inspection import CutReader
from outlast.durable.lineage import Adoption, adopt, write_end
from outlast.durable.listing import read_run
from outlast.durable.lock import RunLock, acquire
from outlast.durable.manifest import FORMAT, BootstrapRecord, FileEntry, encode
from outlast.durable.publish import TmpTree
from outlast.durable.restore import Plan, RestoreMode, Resume, plan_restore
from outlast.durable.segments import Held, SegmentStore
from outlast.durable.snapshots import Publisher
from outlast.errors import DiskError
from outlast.model.cursor import CursorState
from outlast.model.cut import (
    GENESIS,
    Anchor,
    AnchorKind,
    Cut,
    PrefixRef,
    SamplerState,
    SettledCounts,
)
from outlast.model.groups import Group
from outlast.model.ids import (
    AttemptKey,
    Incarnation,
    Sequence,
    Step,
    TrainerVersion,
)
from outlast.model.journal import Applied
from outlast.rows import Row
from outlast.testing.crash_facts import (
    KEEP_SNAPSHOTS,
    RECIPE,
    RUN_DIR,
    SEED,
    SIZE,
    Promises,
    current_fingerprint,
    group_of,
    history_at,
    make_world,
    open_group_of,
    prefix_of,
    row_of,
)
from outlast.world import Perhaps, no_mark

_BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS)


@dataclass
class _State:
    """The model side, reduced to what a cut needs."""

    groups: dict[int, Group] = field(default_factory=dict)
    held: dict[AttemptKey, Held] = field(default_factory=dict)
    prefixes: dict[int, Row] = field(default_factory=dict)
    """What unfinished groups have decoded, by group."""
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
            self._continue(self.loaded, self.plan.anchor, held=held)

    def _continue(self, loaded: LoadedCut, anchor: Anchor, *, held: dict[AttemptKey, Held]) -> None:
        cut = loaded.cut
        self.state = _State(
            groups={group.id: group for group in cut.groups},
            held=held,
            prefixes={row.key.group: row for row in loaded.prefixes},
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
        rows = [row_of(number, self.incarnation) for number in numbers]
        self.store.append(rows)
        for number, held in zip(numbers, rows, strict=True):
            assert held.row is not None
            self.state.held[held.row.key] = held
            self.state.groups[number] = group_of(number, self.incarnation)
        self.state.drawn += count

    def begin(self, count: int) -> None:
        """Draw `count` groups whose one attempt has decoded its first tokens."""
        for number in range(self.state.drawn, self.state.drawn + count):
            self.state.groups[number] = open_group_of(number, self.incarnation)
            self.state.prefixes[number] = prefix_of(number, self.incarnation, tokens=1)
        self.state.drawn += count

    def grow(self) -> None:
        """Every unfinished attempt decodes three more tokens."""
        for number, row in self.state.prefixes.items():
            tokens = len(row.response_ids) + 3
            self.state.prefixes[number] = prefix_of(number, row.key.incarnation, tokens=tokens)

    def finish(self) -> None:
        """Seal every unfinished attempt: its prefix is gone, its row is there."""
        for number, row in self.state.prefixes.items():
            held = row_of(number, row.key.incarnation)
            self.store.append([held])
            self.state.held[row.key] = held
            self.state.groups[number] = group_of(number, row.key.incarnation)
        self.state.prefixes = {}

    def snapshot(self) -> None:
        """Publish a periodic snapshot, then retain."""
        cut = self._cut(self.state.anchor)
        tree = self.publisher.open_snapshot(cut.sequence)
        try:
            saved = self._save(tree, link=True)
            self.publisher.publish_snapshot(
                tree,
                cut=cut,
                rows=saved,
                prefixes=self.state.prefixes.values(),
                fingerprint=_fingerprint(),
                recipe=RECIPE,
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
        victims = sorted(self.state.groups.keys() - self.state.prefixes.keys())[:consumed]
        held = [self.state.groups[number] for number in victims]
        self.log.append(
            Applied(
                step=Step(version),
                groups=tuple(group.id for group in held),
                refs=tuple(group.prompt for group in held),
                history=history,
                lengths=tuple(() for _ in held),
                masked=tuple(() for _ in held),
            )
        )
        keys = [r.key for n in victims for r in self.state.groups[n].receipts()]
        anchor = Anchor(kind=AnchorKind.CHECKPOINT, version=version, history=history)
        before, self.state = self.state, self._trained(victims, keys, anchor=anchor)
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
                tree,
                cut=cut,
                rows=saved,
                prefixes=self.state.prefixes.values(),
                fingerprint=_fingerprint(),
                recipe=RECIPE,
                metrics={},
            )
        except DiskError:
            tree.abandon()
            self.state = before  # as if the step had not been taken: nothing durable covers it
            raise
        self._acknowledge(cut)
        self.store.release(keys)
        self.warnings += self.publisher.retain_checkpoints(pinned=(), keep_top_k=0)

    def _trained(self, victims: list[int], keys: list[AttemptKey], *, anchor: Anchor) -> _State:
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
            prefixes=tuple(
                PrefixRef(key=row.key, tokens=len(row.response_ids))
                for row in state.prefixes.values()
            ),
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
