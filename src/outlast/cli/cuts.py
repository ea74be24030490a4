"""Cuts as the tools show them: rows of the listing, the contents of one, verdicts byte by byte.

May import: `durable`, `model`, `errors`, `cli`, rich.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from outlast.cli import format as fmt
from outlast.cli.output import FILES, ago, columns, moment
from outlast.durable.ancestry import why_foreign
from outlast.durable.cutcodec import load_cut
from outlast.durable.lineage import lineage_cuts
from outlast.durable.manifest import CutState, FoundCut, RunListing, TreeKind
from outlast.durable.verify import verify_file
from outlast.errors import CorruptData, NotRestorable
from outlast.model.cursor import CursorState
from outlast.model.cut import Cut
from outlast.model.groups import GroupState

_SNAPSHOT = re.compile(r"(?:snapshot_)?([0-9]+)")
_CHECKPOINT = re.compile(r"step_([0-9]+)")


class CutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `snapshots list`; what a damaged manifest would have said is null."""

    id: str
    anchor: str | None
    sequence: int | None
    trainer_version: int | None
    incarnation: int | None
    created: float | None
    """Seconds since the epoch."""
    bytes: int
    state: CutState
    reason: str | None
    """Why it is corrupt or foreign."""


class AppliedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that no durable trainer checkpoint covers yet."""

    step: int
    groups: int
    outcome: dict[str, float]


class Contents(CutRow, frozen=True, kw_only=True):
    """What `snapshots show` says of one cut."""

    parent: int | None
    history: str
    groups: dict[str, int]
    """By state; every state is named."""
    siblings_sealed: int
    siblings_missing: int
    """Responses that a restore would have to generate."""
    rows: int
    tokens: int
    """Response tokens in sealed rows."""
    prefixes: int
    """Unfinished responses whose tokens are saved too."""
    prefix_tokens: int
    reserve: int
    drawn: int
    trained: int
    dropped: dict[str, int]
    cursor: CursorState
    sampler: dict[str, object]
    applied_steps: tuple[AppliedStep, ...]
    shortfalls: dict[str, int]
    owed: dict[str, int]
    last_done: dict[str, int]
    files: int
    log_bytes: int


# ------------------------------------------------------------------------------------- finding


def find(listing: RunListing, text: str) -> FoundCut:
    """The cut that `text` names. Raises NotRestorable naming those that stand."""
    checkpoint, snapshot = _CHECKPOINT.fullmatch(text), _SNAPSHOT.fullmatch(text)
    for found in listing.cuts:
        if checkpoint and found.kind is TreeKind.TRAINER_CHECKPOINT:
            if found.number == int(checkpoint.group(1)):
                return found
        elif snapshot and _sequence(found) == int(snapshot.group(1)):
            return found
    standing = ", ".join(found.path.name for found in listing.cuts) or "none"
    raise NotRestorable(
        f"{text}: no such cut. Give snapshot_000007, 7 or step_000012; standing: {standing}. "
        "A run that is alive removes superseded cuts"
    )


def newest(listing: RunListing) -> FoundCut:
    """The newest cut of the lineage. Raises NotRestorable when there is none."""
    found = lineage_cuts(listing)
    if not found:
        raise NotRestorable("this run has no valid cut; `snapshots list` shows what there is")
    return found[-1]


def _sequence(found: FoundCut) -> int | None:
    if found.manifest is not None:
        return found.manifest.sequence
    return found.number if found.kind is TreeKind.SNAPSHOT else None


# ------------------------------------------------------------------------------------- listing


def row(listing: RunListing, found: FoundCut, *, defect: str | None = None) -> CutRow:
    """One cut; `defect` is what a closer look found."""
    manifest, broken = found.manifest, defect or found.defect
    foreign = None if manifest is None else why_foreign(listing, manifest)
    state = CutState.VALID
    if manifest is None or broken is not None:
        state = CutState.CORRUPT
    elif foreign is not None:
        state = CutState.FOREIGN
    return CutRow(
        id=found.path.name,
        anchor=None if manifest is None else str(manifest.anchor),
        sequence=_sequence(found),
        trainer_version=None if manifest is None else manifest.trainer_version,
        incarnation=None if manifest is None else manifest.incarnation,
        created=None if manifest is None else manifest.created,
        bytes=found.bytes,
        state=state,
        reason=broken or foreign,
    )


def rows(listing: RunListing) -> tuple[CutRow, ...]:
    """All cuts, oldest first; those whose place is unknown come last."""
    found = [row(listing, cut) for cut in listing.cuts]
    last = max((r.sequence for r in found if r.sequence is not None), default=0) + 1
    return tuple(sorted(found, key=lambda r: last if r.sequence is None else r.sequence))


def table(found: Iterable[CutRow], listing: RunListing) -> str:
    """The listing for people."""
    lines = [_cells(r) for r in found]
    if not lines:
        return "no cut was ever published here, or none is left"
    header = ("id", "cut", "version", "anchor", "life", "taken", "size", "state")
    text = columns(header, lines)
    if listing.debris:
        text += f"\n{fmt.plural(len(listing.debris), 'unfinished tree')}, swept at the next start"
    return text


def _cells(r: CutRow) -> tuple[str, ...]:
    def known(value: object) -> str:
        return "?" if value is None else str(value)

    return (
        r.id,
        known(r.sequence),
        known(r.trainer_version),
        known(r.anchor),
        known(r.incarnation),
        "?" if r.created is None else ago(r.created),
        "?" if r.trainer_version is None else fmt.size(r.bytes),
        r.state.value + (f": {r.reason}" if r.reason else ""),
    )


# ------------------------------------------------------------------------------------- showing


def contents(run_dir: PurePosixPath, found: FoundCut, *, listing: RunListing) -> Contents:
    """Verify a cut's rollout files and say what they hold. Raises CorruptData, DiskError."""
    loaded = load_cut(FILES, run_dir, found=found)
    cut, base = loaded.cut, row(listing, found)
    counts = cut.counts()
    siblings = [s for group in cut.groups for s in group.siblings]
    receipts = [receipt for group in cut.groups for receipt in group.receipts()]
    return Contents(
        **{name: getattr(base, name) for name in base.__struct_fields__},
        parent=cut.parent,
        history=cut.history,
        groups={state.value: counts[state] for state in GroupState},
        siblings_sealed=len(receipts),
        siblings_missing=sum(not sibling.sealed for sibling in siblings),
        rows=len(receipts),
        tokens=sum(receipt.response_tokens for receipt in receipts),
        prefixes=len(cut.prefixes),
        prefix_tokens=sum(prefix.tokens for prefix in cut.prefixes),
        reserve=len(cut.reserve),
        drawn=cut.drawn,
        trained=cut.settled.trained,
        dropped=cut.settled.dropped,
        cursor=cut.cursor,
        sampler=msgspec.to_builtins(cut.sampler),
        applied_steps=_applied(cut),
        shortfalls=cut.shortfalls,
        owed=cut.owed,
        last_done=cut.last_done,
        files=len(loaded.manifest.files),
        log_bytes=cut.log.length,
    )


def _applied(cut: Cut) -> tuple[AppliedStep, ...]:
    return tuple(
        AppliedStep(step=r.step, groups=len(r.groups), outcome=r.outcome) for r in cut.applied_steps
    )


def view(c: Contents) -> str:
    """One cut for people."""
    assert c.created is not None
    taken = f"{moment(c.created)}, {ago(c.created)}, by incarnation {c.incarnation}"
    groups = Counter({state: n for state, n in c.groups.items() if n})
    dropped = ", ".join(f"{n} {reason}" for reason, n in c.dropped.items() if n)
    steps = ", ".join(f"{s.step} ({s.groups} groups)" for s in c.applied_steps)
    sampler = {k: v for k, v in c.sampler.items() if k not in ("name", "own")}
    lines = [
        ("state", c.state.value + (f": {c.reason}" if c.reason else "")),
        ("taken", taken),
        ("trainer", f"version {c.trainer_version}, anchor {c.anchor}"),
        ("applied", f"steps above the anchor: {steps}" if steps else ""),
        ("groups", ", ".join(f"{n} {state}" for state, n in groups.items()) or "none unsettled"),
        ("responses", f"{c.siblings_sealed:,} sealed, {c.siblings_missing:,} to generate"),
        ("rows", f"{c.rows:,} rows, {fmt.count(c.tokens)} response tokens"),
        ("prefixes", _prefixes(c)),
        ("prompts", _prompts(c, dropped)),
        ("cursor", _cursor(c)),
        ("sampler", f"{c.sampler['name']}: " + ", ".join(f"{v} {k}" for k, v in sampler.items())),
        ("short", ", ".join(f"step {s} by {n}" for s, n in c.shortfalls.items())),
        ("owed", ", ".join(f"{n} to step {s}" for s, n in c.owed.items())),
        ("last done", ", ".join(f"{duty} at {v}" for duty, v in c.last_done.items())),
        ("size", f"{fmt.size(c.bytes)} in {fmt.plural(c.files, 'file')}"),
        ("history", c.history[:16]),
    ]
    return f"{c.id} (cut {c.sequence})\n{fmt.table([line for line in lines if line[1]])}"


def _prefixes(c: Contents) -> str:
    if not c.prefixes:
        return ""
    return f"{c.prefixes:,} unfinished responses, {fmt.count(c.prefix_tokens)} tokens kept"


def _prompts(c: Contents, dropped: str) -> str:
    text = f"{c.drawn:,} drawn, {c.trained:,} trained, {sum(c.dropped.values()):,} dropped"
    return f"{text}{f' ({dropped})' if dropped else ''}, {c.reserve:,} in reserve"


def _cursor(c: Contents) -> str:
    return f"epoch {c.cursor.epoch}, position {c.cursor.position:,}" + (
        ", exhausted" if c.cursor.exhausted else ""
    )


# ----------------------------------------------------------------------------------- verifying


def verify(
    run_dir: PurePosixPath, cuts: Iterable[FoundCut], *, listing: RunListing, quiet: bool
) -> tuple[CutRow, ...]:
    """Digest every byte of the cuts, one after the other, with a progress bar on a terminal."""
    console = Console(stderr=True)
    shown = console.is_terminal and not quiet
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        redirect_stdout=False,
        transient=True,
        disable=not shown,
    )
    verdicts: list[CutRow] = []
    with bar:
        for found in cuts:
            verdict = row(listing, found, defect=_defect(run_dir, found, bar=bar))
            if verdict.state is CutState.CORRUPT and not FILES.exists(run_dir / found.path):
                continue  # a live run has retained it meanwhile
            verdicts.append(verdict)
    return tuple(verdicts)


def _defect(run_dir: PurePosixPath, found: FoundCut, *, bar: Progress) -> str | None:
    if found.manifest is None:
        return found.defect
    task = bar.add_task(found.path.name, total=found.bytes)
    try:
        for entry in found.manifest.files:
            verify_file(FILES, run_dir / found.path, entry=entry)
            bar.advance(task, entry.size)
        load_cut(FILES, run_dir, found=found)
    except CorruptData as error:
        return str(error)
    finally:
        bar.remove_task(task)
    return None


def verdict_line(verdict: CutRow) -> str:
    """One verdict for people."""
    if verdict.state is CutState.CORRUPT:
        return f"{verdict.id}  corrupt: {verdict.reason}"
    whole = f"{verdict.id}  whole, {fmt.size(verdict.bytes)}"
    return whole if verdict.reason is None else f"{whole}; foreign: {verdict.reason}"
