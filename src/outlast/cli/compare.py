"""`snapshots diff A B` and `snapshots why ID` for people.

May import: `durable`, `cli`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from outlast.cli import format as fmt
from outlast.cli.cuts import find, newest
from outlast.cli.output import FILES, columns, has_gone, patiently
from outlast.durable.cutcodec import load_cut
from outlast.durable.diff import Difference, Pair, diff_cuts
from outlast.durable.manifest import RunListing
from outlast.durable.restore import RestoreMode
from outlast.durable.why import Why, why
from outlast.errors import CorruptData

SHOWN_MAX = 20
"""Groups listed one by one; all of them are in --json."""


def diff(
    run_dir: PurePosixPath, listing: RunListing, *, names: tuple[str | None, str | None]
) -> Difference:
    """What happened between the two cuts named. Raises NotRestorable, CorruptData, DiskError."""
    a, b = (
        load_cut(FILES, run_dir, found=newest(listing) if name is None else find(listing, name))
        for name in names
    )
    return diff_cuts(FILES, run_dir, listing=listing, a=a, b=b)


def diff_text(d: Difference) -> str:
    """The difference for people."""
    added = f"{d.rows_added:,} rows, {fmt.count(d.tokens_added)} tokens"
    moved = f"{d.rows_removed:,} rows gone" if d.rows_removed else ""
    order = "later" if d.seconds >= 0 else "earlier"
    branch = "" if d.same_history else "; they are on different branches"
    rows = [
        ("taken", f"{fmt.duration(abs(d.seconds))} {order}{branch}"),
        ("trainer", f"{_pair(d.trainer_version)}, anchor {_change(*d.anchors)}"),
        ("steps", _steps(d.steps)),
        ("drawn", _pair(d.drawn)),
        ("cursor", _change(*d.cursor)),
        ("sampler", ", ".join(f"{name} {_pair(p)}" for name, p in d.sampler.items())),
        ("siblings", _siblings(d)),
        ("rows", ", ".join(part for part in (f"{_pair(d.rows)}: {added} added", moved) if part)),
        ("prefixes", "" if d.prefix_tokens == _NONE else f"{_pair(d.prefix_tokens)} tokens"),
        ("bytes", f"{fmt.size(d.bytes.after)}, {fmt.size(d.bytes_added)} of them new"),
        ("groups", "\n".join(f"{n:,} {move}" for move, n in d.transitions.items())),
    ]
    text = f"{d.a} -> {d.b}\n{fmt.table([row for row in rows if row[1]])}"
    return text + (f"\n\n{_groups(d)}" if d.groups else "")


_NONE = Pair(before=0, after=0)


def _pair(pair: Pair) -> str:
    return f"{pair.before:,}" if pair.before == pair.after else f"{pair.before:,} -> {pair.after:,}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _steps(steps: Sequence[int]) -> str:
    if not steps:
        return "none between them"
    span = f"{steps[0]} to {steps[-1]}" if len(steps) > 1 else f"{steps[0]}"
    return f"{fmt.plural(len(steps), 'step')} between them: {span}"


def _siblings(d: Difference) -> str:
    return (
        f"{d.siblings_sealed:,} sealed, {d.siblings_trained:,} trained, "
        f"{d.siblings_dropped:,} dropped"
    )


def _groups(d: Difference) -> str:
    shown = [(str(g.id), g.before, g.after, _pair(g.sealed)) for g in d.groups[:SHOWN_MAX]]
    text = columns(("group", "before", "after", "rows"), shown)
    left = len(d.groups) - len(shown)
    return text + (f"\nand {left:,} more; --json gives all" if left else "")


def why_text(w: Why) -> str:
    """The verdict for people."""
    verdict = "restorable" if w.restorable else "not restorable"
    replay = f", {fmt.plural(w.steps_to_replay, 'step')} to replay" if w.steps_to_replay else ""
    rows = [
        ("state", w.state.value),
        ("trainer", f"{w.anchor}{replay}" if w.anchor else ""),
        ("because", "\n".join(w.reasons)),
        ("differs", "\n".join(_difference(d.dotpath, d.stored, now=d.now) for d in w.differences)),
        ("remedy", "\n".join(w.remedy)),
    ]
    return f"{w.id}: {verdict}\n{fmt.table([row for row in rows if row[1]])}"


def _difference(dotpath: str, stored: str, *, now: str) -> str:
    return f"{dotpath}: {stored} -> {now}"


def explain(
    run: Path,
    cut: str | None,
    *,
    recipe: str | None,
    overrides: Sequence[str] | None,
) -> Why:
    """Judge a cut (None: the newest) under a recipe. Raises RecipeError, NotRestorable."""
    from outlast.cli.recipes import fingerprint_under, recipe_of

    loaded = recipe_of(run, recipe, overrides=overrides)
    fingerprint = fingerprint_under(loaded)

    def judge(run_dir: PurePosixPath, listing: RunListing) -> Why:
        found = newest(listing) if cut is None else find(listing, cut)
        verdict = why(
            FILES,
            run_dir,
            listing=listing,
            found=found,
            fingerprint=fingerprint,
            mode=RestoreMode(loaded.recipe.rollout_checkpointing.restore_mode),
        )
        if not FILES.exists(run_dir / found.path) or (
            verdict.chosen is None and has_gone(run_dir, listing)
        ):
            raise CorruptData(f"{found.path} or another cut was removed while it was read")
        return verdict

    return patiently(run, judge)
