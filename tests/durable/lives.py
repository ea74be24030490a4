"""Real run directories without a controller: model, log and publisher driven by hand.

Each `Life` is one incarnation. A `rule` may rewrite what it writes to the consumption log, which is
how the audit's tests forge runs whose every digest is right and whose story is not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from outlast.durable import names
from outlast.durable.anchors import write_bootstrap
from outlast.durable.consumption import ConsumptionLog
from outlast.durable.cuts import newest_cut
from outlast.durable.files import PosixFiles
from outlast.durable.lineage import adopt, write_end
from outlast.durable.listing import read_run
from outlast.durable.manifest import FORMAT, BootstrapRecord, Manifest, sha256
from outlast.durable.snapshots import Publisher
from outlast.model.cut import GENESIS, Anchor, AnchorKind, Cut, LogPosition, covered
from outlast.model.groups import PromptRef, Receipt, RecoveryLevel
from outlast.model.ids import AttemptKey, GroupId, TrainerVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.model.journal import JournalRecord
from outlast.model.plan import RunPlan
from outlast.model.sampler_kinds import ReadyFirst
from outlast.model.state import RecoveryState
from outlast.world import Identity, SystemClock, ThreadOffload, World

PER_STEP = 2
SIBLINGS = 2
DATASET_SIZE = 7
BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS)
FILES = PosixFiles()

Rule = Callable[[JournalRecord], Sequence[JournalRecord]]


def honest(record: JournalRecord) -> Sequence[JournalRecord]:
    """Write what happened."""
    return (record,)


@dataclass
class Forger:
    """A journal that writes what `rule` makes of each record."""

    log: ConsumptionLog
    rule: Rule

    @property
    def position(self) -> LogPosition:
        return self.log.position

    def append(self, record: JournalRecord, /) -> None:
        for forged in self.rule(record):
            self.log.append(forged)


def world() -> World:
    return World(
        clock=SystemClock(),
        offload=ThreadOffload(threads=1),
        random=random.Random(0),
        identity=Identity(host="test", pid=1),
    )


def plan() -> RunPlan:
    return RunPlan(
        prompts_per_step=PER_STEP,
        siblings=SIBLINGS,
        capacity=16,
        level=lambda prompt: RecoveryLevel.SIBLING,
        dataset="toy",
        dataset_size=DATASET_SIZE,
        seed=3,
        epochs=100,
    )


def receipt(key: AttemptKey, version: int) -> Receipt:
    return Receipt(
        key=key,
        digest=sha256(f"{key.group}.{key.sibling}".encode()),
        reward=float(key.sibling),
        prompt_tokens=2,
        response_tokens=10,
        min_version=TrainerVersion(version),
        max_version=TrainerVersion(version),
        truncated=False,
        mask_sample=False,
    )


@dataclass
class Life:
    """One incarnation on `path`; the first one starts the run, others restore the newest cut."""

    path: Path
    rule: Rule = honest
    state: RecoveryState = field(init=False)
    publisher: Publisher = field(init=False)
    anchor: Anchor = field(init=False)
    parent: CutSequence | None = None
    at: CutSequence = field(init=False)

    def __post_init__(self) -> None:
        run_dir = PurePosixPath(self.path)
        listing = read_run(FILES, run_dir, verify="manifest")
        loaded = newest_cut(FILES, run_dir, listing=listing).loaded
        born = adopt(
            FILES,
            run_dir,
            listing=listing,
            restored=None if loaded is None else loaded.manifest,
            world=world(),
        )
        self.number = born.record.number
        self.at = CutSequence(born.record.first_sequence)
        log = ConsumptionLog(
            FILES,
            names.RunPaths(run_dir).consumption,
            incarnation=self.number,
            fence=born.fence,
        )
        self.publisher = Publisher(
            FILES,
            run_dir,
            run=born.run.run,
            incarnation=self.number,
            fence=born.fence,
            log=log,
            world=world(),
        )
        journal = Forger(log, self.rule)
        sampler = ReadyFirst(PER_STEP, 1)
        if loaded is None:
            self.anchor = BOOTSTRAP
            self.state = RecoveryState(
                plan(), sampler=sampler, journal=journal, incarnation=self.number
            )
            write_bootstrap(
                FILES,
                run_dir,
                record=BootstrapRecord(format=FORMAT, model="m", tokenizer="t", fingerprint="f"),
            )
        else:
            cut = loaded.cut
            self.parent = cut.sequence
            self.anchor = cut.anchor
            self.state = RecoveryState.restored(
                plan(),
                sampler=sampler,
                journal=journal,
                incarnation=self.number,
                cut=cut,
                anchor=self.anchor,
                abrupt=True,
            )

    # ------------------------------------------------------------------------------- events

    def admit(self, count: int) -> tuple[GroupId, ...]:
        """Draw `count` prompts; they stay OPEN."""
        return tuple(self.state.admit(self.state.version)[0].id for _ in range(count))

    def finish(self, group: GroupId) -> None:
        """Generate what is missing of a group and commit it."""
        state = self.state
        for sibling in state.ledger.groups[group].siblings:
            if not sibling.sealed:
                key = state.dispatch(group, sibling.index, version=state.version)
                state.seal(receipt(key, state.version))
        state.complete(group)
        state.commit(group, rewards=(0.0, 1.0), keep=(True, True))

    def step(self) -> None:
        """One optimizer step over the next groups in buffer order."""
        state = self.state
        held = state.select(at_least=PER_STEP, at_most=PER_STEP)
        while len(held) < PER_STEP:
            waiting = [
                g for g, held_group in state.ledger.groups.items() if held_group.state == "open"
            ]
            self.finish(waiting[0] if waiting else self.admit(1)[0])
            held = state.select(at_least=PER_STEP, at_most=PER_STEP)
        state.claim(held, state.version + 1)  # type: ignore[arg-type]
        state.apply(held, chunks=(len(held),), outcome={"loss": 0.5})

    def replay(self) -> None:
        """Execute the oldest step above the anchor again."""
        self.state.replay({"loss": 0.5})

    def drop(self, group: GroupId) -> None:
        self.state.give_up(group)

    # --------------------------------------------------------------------------- publishing

    def _cut(self) -> Cut:
        cut = self.state.cut(sequence=self.at, parent=self.parent, anchor=self.anchor)
        self.at = CutSequence(self.at + 1)
        return cut

    def snapshot(self) -> Manifest:
        cut = self._cut()
        tree = self.publisher.open_snapshot(cut.sequence)
        manifest = self.publisher.publish_snapshot(
            tree, cut=cut, rows=(), fingerprint=b"{}", recipe=b"seed: 3\n"
        )
        self.parent = cut.sequence
        return manifest

    def checkpoint(self) -> Manifest:
        cut = covered(self._cut())
        tree = self.publisher.open_checkpoint(cut.trainer_version, sequence=cut.sequence)
        (Path(tree.directory) / names.TRAINER / "weights.bin").write_bytes(b"w" * 1000)
        manifest = self.publisher.publish_checkpoint(
            tree, cut=cut, rows=(), fingerprint=b"{}", recipe=b"seed: 3\n", metrics={"reward": 0.5}
        )
        self.state.durable(cut.trainer_version)
        self.anchor, self.parent = cut.anchor, cut.sequence
        return manifest

    def end(self, reason: str = "preempted") -> None:
        """Record an orderly end."""
        write_end(
            FILES,
            PurePosixPath(self.path),
            number=self.number,
            reason=reason,
            last_cut=self.parent,
            ended=1_700_000_000.0,
        )


def typical(path: Path, rule: Rule = honest) -> Life:
    """Three lives: a kill with void work, a preemption, and one still going.

    Draws 12 prompts over two epochs; trains 4 steps of 2, drops one, keeps the rest outstanding.
    """
    first = Life(path, rule)
    first.admit(4)
    first.step()
    first.checkpoint()
    first.drop(first.admit(1)[0])
    first.snapshot()
    first.step()  # void: killed before anything was published
    second = Life(path, rule)
    second.step()
    second.checkpoint()
    second.snapshot()
    second.end()
    third = Life(path, rule)
    third.admit(3)
    third.step()
    third.checkpoint()
    third.step()
    third.checkpoint()
    third.admit(2)
    third.snapshot()
    return third


def ref(group: int) -> PromptRef:
    """A prompt that no draw of the toy dataset holds."""
    return PromptRef(dataset="toy", epoch=9, index=group)
