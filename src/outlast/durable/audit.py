"""The offline audit: exactly-once over all incarnations, judged from files alone (P2, S1, S4, S7).

Independent of the ledger: it reads the consumption log of every incarnation on the lineage, each up
to the position that the cut restored by the next one names, and compares what was trained and
dropped, draw by draw, with the dataset order and with the newest valid cut. What lies beyond those
positions is void: it was never adopted, so the same draws happened again. Read-only.
May import: `durable`, `model`, `errors`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.consumption import read_log
from outlast.durable.cuts import Newest, newest_cut, read_chain
from outlast.durable.files import Files
from outlast.durable.lengths import LengthAudit, LengthBooks
from outlast.durable.listing import read_run
from outlast.durable.manifest import RunListing
from outlast.errors import CorruptData, UnsupportedFormat
from outlast.model.cursor import DatasetOrder
from outlast.model.cut import GENESIS, Cut, LogPosition
from outlast.model.groups import GroupState, PromptRef
from outlast.model.history import extend_history
from outlast.model.ids import GroupId, Incarnation, Sequence, Step
from outlast.model.journal import Applied, Dropped, JournalRecord, Replayed

FINDINGS_MAX = 100
"""Findings kept as text; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeAudit:
    """What one incarnation did that still counts."""

    incarnation: Incarnation
    restored_from: Sequence | None
    counts: bool
    """False for a life whose cuts nobody continued: everything it did is void."""
    log_bytes: int
    """Bytes of its consumption log that count."""
    first_step: Step | None
    steps: int
    trained: int
    dropped: int
    replayed: int
    ended: str | None
    """Reason of an orderly end; None for a kill, or while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The verdict and its numbers; groups are prompts drawn, each counted once."""

    run: str | None
    cut: str | None
    """The newest valid cut, which was judged; None when nothing was ever published."""
    rejected: tuple[tuple[str, str], ...]
    """(cut, reason) of damaged cuts that were passed over; no violation by themselves."""
    trainer_version: int
    history: str
    drawn: int
    trained: int
    dropped: int
    dropped_by_reason: dict[str, int]
    outstanding: int
    """Drawn and neither trained nor dropped: in the reserve or in the ledger."""
    skipped: int
    """Drawn, and nowhere to be found."""
    repeated: int
    """Trained, dropped or outstanding more than once."""
    lengths: LengthAudit
    """Response lengths of what was trained against all that was finished: a warning at most."""
    incarnations: tuple[LifeAudit, ...]
    violations: tuple[str, ...]
    violations_total: int

    @property
    def ok(self) -> bool:
        return self.violations_total == 0


def audit_run(files: Files, run_dir: PurePosixPath) -> AuditReport:
    """Judge a run directory, live or at rest.

    Raises CorruptData for damaged run or incarnation records, UnsupportedFormat, DiskError.
    """
    listing = read_run(files, run_dir, verify="manifest")
    newest = newest_cut(files, run_dir, listing=listing)
    loaded = newest.loaded
    account = _Account()
    chain: tuple[LogPosition, ...] = ()
    if loaded is None and newest.rejected:
        many = len(newest.rejected)
        account.violation(f"none of {many} published cut{'s' * (many > 1)} proves whole")
    if loaded is not None:
        account.order = DatasetOrder(seed=loaded.cut.dataset_seed, size=loaded.cut.dataset_size)
        try:
            chain = read_chain(listing, loaded.manifest)
        except CorruptData as error:
            account.violation(str(error))
        for position in chain:
            account.life(position, _records(files, run_dir, position=position, account=account))
        account.close(loaded.cut)
        account.check_histories(listing, chain)
    return _report(listing, newest, chain=chain, account=account)


def _records(
    files: Files, run_dir: PurePosixPath, *, position: LogPosition, account: _Account
) -> tuple[JournalRecord, ...]:
    try:
        return read_log(files, names.RunPaths(run_dir).consumption, position=position)
    except (CorruptData, UnsupportedFormat) as error:
        account.violation(f"incarnation {position.incarnation}: {error}")
        return ()


@dataclass(slots=True)
class _Account:
    """The books: one pass over the records of the lineage, then the comparison with the cut."""

    order: DatasetOrder = field(default_factory=lambda: DatasetOrder(seed=0, size=1))
    trained: dict[GroupId, Step] = field(default_factory=dict)
    dropped: dict[GroupId, str] = field(default_factory=dict)
    histories: dict[int, str] = field(default_factory=lambda: {0: GENESIS})
    """By trainer version."""
    steps: dict[Step, Applied] = field(default_factory=dict)
    lives: dict[Incarnation, Counter[str]] = field(default_factory=dict)
    first_steps: dict[Incarnation, Step] = field(default_factory=dict)
    repeats: Counter[GroupId] = field(default_factory=Counter)
    missing: int = 0
    outstanding: int = 0
    datasets: set[str] = field(default_factory=set)
    lengths: LengthBooks = field(default_factory=LengthBooks)
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    _where: str = ""

    def violation(self, text: str) -> None:
        self.violations_total += 1
        if len(self.violations) < FINDINGS_MAX:
            self.violations.append(text)

    # -------------------------------------------------------------------------- the records

    def life(self, position: LogPosition, records: tuple[JournalRecord, ...]) -> None:
        """Take in the records of one incarnation that count."""
        number = position.incarnation
        counts = self.lives.setdefault(number, Counter())
        self._where = f"incarnation {number}"
        for record in records:
            match record:
                case Applied():
                    self._applied(record)
                    self.first_steps.setdefault(number, record.step)
                    counts.update(steps=1, trained=len(record.groups))
                case Dropped():
                    self._dropped(record)
                    counts.update(dropped=1)
                case _:
                    self._replayed(record)
                    counts.update(replayed=1)

    @property
    def version(self) -> int:
        """Trainer version that the records lead to."""
        return max(self.histories)

    def _applied(self, record: Applied) -> None:
        where = f"{self._where}, step {record.step}"
        if record.step != self.version + 1:
            self.violation(f"{where}: follows version {self.version}; steps must be consecutive")
        if len(record.refs) != len(record.groups):
            self.violation(f"{where}: {len(record.groups)} groups, {len(record.refs)} prompts")
        self.lengths.applied(record)
        self.steps[record.step] = record
        self.histories[record.step] = record.history
        for group, prompt in zip(record.groups, record.refs, strict=False):
            if self._settle(group, prompt, where=f"{where}: group {group}"):
                self.trained[group] = record.step

    def _dropped(self, record: Dropped) -> None:
        self.lengths.dropped(record)
        where = f"{self._where}: dropped group {record.group}"
        if self._settle(record.group, record.ref, where=where):
            self.dropped[record.group] = str(record.reason)

    def _replayed(self, record: Replayed) -> None:
        if record.step not in self.steps:
            self.violation(f"{self._where}: replayed step {record.step}, which nobody applied")

    def _settle(self, group: GroupId, prompt: PromptRef, *, where: str) -> bool:
        """Check one settled group; False when it was settled before."""
        self.datasets.add(prompt.dataset)
        if group < 0:
            self.violation(f"{where}: no draw has this number")
            return False
        expected, found = self.order.at(group), (prompt.epoch, prompt.index)
        if found != expected:
            self.violation(f"{where}: holds prompt {found}; draw {group} is {expected}")
        before = self._settled(group)
        if before is not None:
            self.repeats[group] += 1
            self.violation(f"{where}: was already {before}")
        return before is None

    def _settled(self, group: GroupId) -> str | None:
        if group in self.trained:
            return f"trained by step {self.trained[group]}"
        return f"dropped ({self.dropped[group]})" if group in self.dropped else None

    # ------------------------------------------------------------------------------ the cut

    def close(self, cut: Cut) -> None:
        """Compare the books with the cut that they lead to."""
        self._where = f"cut {cut.sequence}"
        self._check_position(cut)
        self._check_groups(cut)
        self._check_settled(cut)
        self._check_steps(cut)
        if len(self.datasets) > 1:
            self.violation(f"prompts of {len(self.datasets)} datasets: {sorted(self.datasets)}")

    def _check_position(self, cut: Cut) -> None:
        # Above its version stand the steps that a life was still replaying when it took the cut.
        reaches = max((int(r.step) for r in cut.applied_steps), default=cut.trainer_version)
        reaches = max(reaches, cut.trainer_version)
        if reaches != self.version:
            self.violation(
                f"{self._where}: reaches version {reaches}, the logs lead to {self.version}"
            )
        logged = self.histories.get(cut.trainer_version, "none")
        if cut.history != logged:
            self.violation(
                f"{self._where}: its history is {cut.history[:12]}, that of the logs is "
                f"{logged[:12]}"
            )

    def _check_groups(self, cut: Cut) -> None:
        outstanding: Counter[GroupId] = Counter(spare.id for spare in cut.reserve)
        self.datasets.update(spare.prompt.dataset for spare in cut.reserve)
        for group in cut.groups:
            self.datasets.add(group.prompt.dataset)
            if group.state not in (GroupState.APPLIED, GroupState.REPLAY):
                outstanding[group.id] += 1
                self.lengths.outstanding(group)
            elif self.trained.get(group.id) != group.step:
                held = f"group {group.id} is {group.state} by step {group.step}"
                self.violation(f"{self._where}: {held}, but {self._said(group.id)}")
        self.outstanding = len(outstanding)
        for group_id, times in outstanding.items():
            before = self._settled(group_id)
            if before is not None:
                self.violation(f"{self._where}: group {group_id} is outstanding, yet {before}")
            extra = times - 1 + (before is not None)
            self.repeats.update({group_id: extra} if extra else {})
        self._check_prefix(cut.drawn, outstanding)

    def _said(self, group: GroupId) -> str:
        return f"the logs say {self._settled(group) or 'nothing of it'}"

    def _check_prefix(self, drawn: int, outstanding: Counter[GroupId]) -> None:
        known = self.trained.keys() | self.dropped.keys() | outstanding.keys()
        missing = [draw for draw in range(drawn) if draw not in known]
        beyond = sorted(group for group in known if group >= drawn)
        self.missing = len(missing)
        for draw in missing:
            self.violation(f"draw {draw} is neither trained nor dropped nor outstanding: skipped")
        for group in beyond:
            self.violation(f"group {group} is {self._said(group)}, but only {drawn} were drawn")

    def _check_settled(self, cut: Cut) -> None:
        pending = sum(g.state in (GroupState.APPLIED, GroupState.REPLAY) for g in cut.groups)
        if cut.settled.trained + pending != len(self.trained):
            self.violation(
                f"{self._where}: counts {cut.settled.trained} trained and {pending} applied, the "
                f"logs {len(self.trained)}"
            )
        reasons = dict(Counter(self.dropped.values()))
        counted = {reason: n for reason, n in cut.settled.dropped.items() if n}
        if reasons != counted:
            self.violation(f"{self._where}: counts {counted} dropped, the logs {reasons}")

    def _check_steps(self, cut: Cut) -> None:
        """Steps whose rows the cut still knows: their history can be computed again."""
        for record in cut.applied_steps:
            logged = self.steps.get(record.step)
            if logged is None or logged.groups != record.groups:
                self.violation(f"{self._where}: step {record.step} is recorded otherwise in a log")
                continue
            base = self.histories.get(record.step - 1)
            if base is None:
                continue
            found = extend_history(base, step=record.step, groups=record.groups, rows=record.rows)
            if found != logged.history:
                self.violation(
                    f"step {record.step}: rows and groups give history {found[:12]}, recorded is "
                    f"{logged.history[:12]}"
                )

    def check_histories(self, listing: RunListing, chain: tuple[LogPosition, ...]) -> None:
        """Every published cut whose log counts must have the history that the logs had then."""
        bounds = {position.incarnation: position.length for position in chain}
        for found in listing.cuts:
            manifest = found.manifest
            if manifest is None or manifest.log.length > bounds.get(manifest.incarnation, -1):
                continue
            logged = self.histories.get(manifest.trainer_version)
            if logged != manifest.history:
                self.violation(
                    f"{found.path}: history {manifest.history[:12]} at version "
                    f"{manifest.trainer_version}, the logs say {(logged or 'none')[:12]}"
                )


def _report(
    listing: RunListing,
    newest: Newest,
    *,
    chain: tuple[LogPosition, ...],
    account: _Account,
) -> AuditReport:
    bounds = {position.incarnation: position.length for position in chain}
    ends = {end.number: end.reason for end in listing.ends}
    lives = []
    for record in listing.incarnations:
        counts = account.lives.get(record.number, Counter())
        lives.append(
            LifeAudit(
                incarnation=record.number,
                restored_from=record.restored_from,
                counts=record.number in bounds,
                log_bytes=bounds.get(record.number, 0),
                first_step=account.first_steps.get(record.number),
                steps=counts["steps"],
                trained=counts["trained"],
                dropped=counts["dropped"],
                replayed=counts["replayed"],
                ended=ends.get(record.number),
            )
        )
    return AuditReport(
        run=None if listing.run is None else listing.run.run,
        cut=None if newest.found is None else newest.found.path.name,
        rejected=newest.rejected,
        trainer_version=0 if newest.loaded is None else newest.loaded.cut.trainer_version,
        history=GENESIS if newest.loaded is None else newest.loaded.cut.history,
        drawn=0 if newest.loaded is None else newest.loaded.cut.drawn,
        trained=len(account.trained),
        dropped=len(account.dropped),
        dropped_by_reason=dict(sorted(Counter(account.dropped.values()).items())),
        outstanding=account.outstanding,
        skipped=account.missing,
        repeated=sum(account.repeats.values()),
        lengths=account.lengths.close(),
        incarnations=tuple(lives),
        violations=tuple(account.violations),
        violations_total=account.violations_total,
    )
