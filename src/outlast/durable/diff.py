"""What happened between two cuts: groups, rows, bytes, cursor, counters, steps. Pure on files.

A group that is in neither ledger is looked up in the consumption logs below its cut, so "trained"
and "dropped" are told apart. The cuts may stand on different branches; then each is judged by its
own logs. Read-only. May import: `durable`, `model`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

import msgspec

from outlast.durable import names
from outlast.durable.consumption import read_log
from outlast.durable.cutcodec import LoadedCut
from outlast.durable.cuts import read_chain
from outlast.durable.files import Files
from outlast.durable.manifest import RunListing
from outlast.model.cut import GENESIS, Cut
from outlast.model.groups import Group, Receipt
from outlast.model.ids import AttemptKey, GroupId
from outlast.model.journal import Applied, Dropped

UNDRAWN, RESERVE, TRAINED = "undrawn", "reserve", "trained"


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Pair(_Record, frozen=True, kw_only=True):
    """A number before and after."""

    before: int
    after: int


class GroupChange(_Record, frozen=True, kw_only=True):
    """A group whose state or sealed siblings differ."""

    id: int
    before: str
    """A group state, `reserve`, `undrawn`, `trained` or `dropped:REASON`."""
    after: str
    sealed: Pair
    """Sealed siblings whose rows the cut holds."""


class Difference(_Record, frozen=True, kw_only=True):
    """`outlast snapshots diff A B`: from A to B."""

    a: str
    b: str
    seconds: float
    """From A to B by the wall clock of the run; negative when B is the older one."""
    same_history: bool
    """Whether one of them trained on from what the other had trained."""
    trainer_version: Pair
    steps: tuple[int, ...]
    """Optimizer steps finished between them."""
    anchors: tuple[str, str]
    drawn: Pair
    cursor: tuple[str, str]
    """Epoch and position."""
    sampler: dict[str, Pair]
    transitions: dict[str, int]
    """`open -> buffered` and the like: number of groups."""
    groups: tuple[GroupChange, ...]
    siblings_sealed: int
    siblings_trained: int
    siblings_dropped: int
    """Rows that A held of groups dropped since."""
    rows: Pair
    rows_added: int
    rows_removed: int
    tokens_added: int
    prefix_tokens: Pair
    bytes: Pair
    """Payload of the two trees."""
    bytes_added: int
    """Payload files of B that A does not have."""


def diff_cuts(
    files: Files, run_dir: PurePosixPath, *, listing: RunListing, a: LoadedCut, b: LoadedCut
) -> Difference:
    """Compare two verified cuts of one run. Raises CorruptData when their logs do not prove."""
    before = _Side.of(files, run_dir, listing=listing, loaded=a)
    after = _Side.of(files, run_dir, listing=listing, loaded=b)
    changes = tuple(_changes(before, after))
    added = after.rows.keys() - before.rows.keys()
    settled_at = before.cut.trainer_version
    return Difference(
        a=a.directory.name,
        b=b.directory.name,
        seconds=b.manifest.created - a.manifest.created,
        same_history=_agree(before, after),
        trainer_version=Pair(before=settled_at, after=after.cut.trainer_version),
        steps=tuple(range(settled_at + 1, after.cut.trainer_version + 1)),
        anchors=(str(before.cut.anchor), str(after.cut.anchor)),
        drawn=Pair(before=before.cut.drawn, after=after.cut.drawn),
        cursor=(_cursor(before.cut), _cursor(after.cut)),
        sampler=_sampler(before.cut, after.cut),
        transitions=dict(sorted(Counter(_moved(change) for change in changes).items())),
        groups=changes,
        siblings_sealed=len(added),
        siblings_trained=_siblings(after, [c for c in changes if _is_trained(c)]),
        siblings_dropped=sum(c.sealed.before for c in changes if c.after.startswith("dropped")),
        rows=Pair(before=len(before.rows), after=len(after.rows)),
        rows_added=len(added),
        rows_removed=len(before.rows.keys() - after.rows.keys()),
        tokens_added=sum(after.rows[key].response_tokens for key in added),
        prefix_tokens=Pair(before=_prefix_tokens(before.cut), after=_prefix_tokens(after.cut)),
        bytes=Pair(before=_bytes(a), after=_bytes(b)),
        bytes_added=_new_bytes(a, b),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    cut: Cut
    groups: Mapping[GroupId, Group]
    states: Mapping[GroupId, str]
    """Of every draw below the cut."""
    widths: Mapping[GroupId, int]
    """Siblings of groups that are trained by the cut."""
    rows: Mapping[AttemptKey, Receipt]
    histories: Mapping[int, str]

    @classmethod
    def of(
        cls, files: Files, run_dir: PurePosixPath, *, listing: RunListing, loaded: LoadedCut
    ) -> _Side:
        cut = loaded.cut
        states: dict[GroupId, str] = {}
        histories: dict[int, str] = {0: GENESIS}
        for position in read_chain(listing, loaded.manifest):
            for record in read_log(files, run_dir / names.CONSUMPTION, position=position):
                if isinstance(record, Applied):
                    states.update(dict.fromkeys(record.groups, TRAINED))
                    histories[record.step] = record.history
                elif isinstance(record, Dropped):
                    states[record.group] = f"dropped:{record.reason}"
        states |= {spare.id: RESERVE for spare in cut.reserve}
        states |= {group.id: str(group.state) for group in cut.groups}
        rows = {r.key: r for group in cut.groups for r in group.receipts()}
        widths = {group.id: len(group.siblings) for group in cut.groups}
        return cls(cut, {g.id: g for g in cut.groups}, states, widths, rows, histories)

    def sealed(self, group: GroupId) -> int:
        held = self.groups.get(group)
        return 0 if held is None else len(held.receipts())


def _agree(before: _Side, after: _Side) -> bool:
    at = min(before.cut.trainer_version, after.cut.trainer_version)
    return before.histories.get(at) == after.histories.get(at)


def _changes(before: _Side, after: _Side) -> list[GroupChange]:
    changes = []
    for group in sorted(before.states.keys() | after.states.keys()):
        change = GroupChange(
            id=group,
            before=before.states.get(group, UNDRAWN),
            after=after.states.get(group, UNDRAWN),
            sealed=Pair(before=before.sealed(group), after=after.sealed(group)),
        )
        if change.before != change.after or change.sealed.before != change.sealed.after:
            changes.append(change)
    return changes


def _moved(change: GroupChange) -> str:
    return f"{change.before} -> {change.after}"


_TRAINED = frozenset({TRAINED, "applied", "replay"})


def _is_trained(change: GroupChange) -> bool:
    return change.after in _TRAINED and change.before not in _TRAINED


def _siblings(after: _Side, changes: list[GroupChange]) -> int:
    """Siblings of groups; a settled group has left the ledger, so its width is the usual one."""
    usual = max((len(g.siblings) for g in after.groups.values()), default=0)
    return sum(after.widths.get(GroupId(c.id), max(usual, c.sealed.before)) for c in changes)


def _cursor(cut: Cut) -> str:
    end = ", exhausted" if cut.cursor.exhausted else ""
    return f"epoch {cut.cursor.epoch}, position {cut.cursor.position}{end}"


def _sampler(before: Cut, after: Cut) -> dict[str, Pair]:
    return {
        name: Pair(before=getattr(before.sampler, name), after=getattr(after.sampler, name))
        for name in ("admitted", "credited", "batches")
    }


def _prefix_tokens(cut: Cut) -> int:
    return sum(prefix.tokens for prefix in cut.prefixes)


def _bytes(loaded: LoadedCut) -> int:
    return sum(entry.size for entry in loaded.manifest.files)


def _new_bytes(a: LoadedCut, b: LoadedCut) -> int:
    known = {(PurePosixPath(entry.name).name, entry.sha256) for entry in a.manifest.files}
    files = ((PurePosixPath(entry.name).name, entry) for entry in b.manifest.files)
    return sum(entry.size for name, entry in files if (name, entry.sha256) not in known)
