"""`outlast restore RUN --dry-run`: what a start would do now, without lock or changes.

The planner is the start's own. May import: `durable`, `model`, `cli`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlast.cli.recipes import Given, Overrides

if TYPE_CHECKING:
    from outlast.durable.cutcodec import LoadedCut
    from outlast.durable.manifest import RunListing
    from outlast.durable.restore import Fresh, Resume


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast restore --dry-run --json`: the fields of the restore report, and `action`."""

    action: str
    """`resume`, `fresh`, or `nothing_to_do` when the target is reached."""
    reason: str | None
    """Of a fresh start."""
    anchor: str | None
    snapshot: str | None
    sequence: int | None
    age_s: float | None
    trainer_version: int
    """Of the trainer state to load."""
    steps_to_replay: int
    groups_reused: int
    siblings_reused: int
    tokens_reused: int
    prefix_tokens_reused: int
    siblings_redispatched: int
    rejected: tuple[tuple[str, str], ...]
    """(cut, reason) of each newer cut that would not be used."""
    ignored: tuple[str, ...]
    """Newer snapshots that restore_mode leaves aside."""
    changes: tuple[str, ...]
    """Training fields that changed and are accepted."""
    verify_s: float


def restore(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Required: `outlast train` is what restores.")
    ] = False,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what a start would restore, and why; take no lock and change nothing."""
    from outlast.cli.output import FILES, open_run, patiently, print_json
    from outlast.cli.recipes import fingerprint_under, recipe_of
    from outlast.durable.inspection import CutReader
    from outlast.durable.restore import Fresh, RestoreMode, plan_restore

    if not dry_run:
        raise typer.BadParameter("give --dry-run; to restore in earnest, run `outlast train`")
    open_run(run, verify="names")
    loaded = recipe_of(run, recipe, overrides=overrides)
    fingerprint = fingerprint_under(loaded)

    def look(run_dir: PurePosixPath, listing: RunListing) -> Planned:
        reader, began = CutReader(FILES, run_dir), time.monotonic()
        plan = plan_restore(
            listing,
            mode=RestoreMode(loaded.recipe.rollout_checkpointing.restore_mode),
            fingerprint=fingerprint,
            inspect=reader.inspector,
            max_replay_steps=sys.maxsize,
        )
        seconds = time.monotonic() - began
        if isinstance(plan, Fresh):
            return _fresh(plan, seconds)
        target = loaded.recipe.algorithm.max_num_steps
        return _resumed(plan, reader.loaded(plan.cut), target=target, verify_s=seconds)

    planned = patiently(run, look)
    print_json(planned) if as_json else typer.echo(_text(planned))


def _fresh(plan: Fresh, verify_s: float) -> Planned:
    return Planned(
        action="fresh",
        reason=plan.reason,
        anchor=None,
        snapshot=None,
        sequence=None,
        age_s=None,
        trainer_version=0,
        steps_to_replay=0,
        groups_reused=0,
        siblings_reused=0,
        tokens_reused=0,
        prefix_tokens_reused=0,
        siblings_redispatched=0,
        rejected=tuple((r.path.name, f"{r.why}: {r.reason}") for r in plan.rejected),
        ignored=(),
        changes=(),
        verify_s=verify_s,
    )


def _resumed(plan: Resume, loaded: LoadedCut, *, target: int, verify_s: float) -> Planned:
    cut, manifest = loaded.cut, plan.manifest
    done = not plan.steps_to_replay and manifest.trainer_version >= target
    live = [group for group in cut.groups if group.holds_permit]
    receipts = [receipt for group in live for receipt in group.receipts()]
    return Planned(
        action="nothing_to_do" if done else "resume",
        reason=None,
        anchor=str(plan.anchor),
        snapshot=plan.cut.path.name,
        sequence=cut.sequence,
        age_s=max(0.0, time.time() - manifest.created),
        trainer_version=plan.anchor.version,
        steps_to_replay=plan.steps_to_replay,
        groups_reused=sum(group.all_sealed for group in live),
        siblings_reused=len(receipts),
        tokens_reused=sum(receipt.response_tokens for receipt in receipts),
        prefix_tokens_reused=sum(prefix.tokens for prefix in cut.prefixes),
        siblings_redispatched=sum(not s.sealed for group in live for s in group.siblings),
        rejected=tuple((r.path.name, f"{r.why}: {r.reason}") for r in plan.rejected),
        ignored=tuple(path.name for path in plan.ignored),
        changes=tuple(map(str, plan.changes)),
        verify_s=verify_s,
    )


def _text(p: Planned) -> str:
    from outlast.cli import format as fmt

    if p.action == "fresh":
        return f"a start would begin anew: {p.reason}{_passed(p)}"
    head = f"a start would resume from {p.snapshot}"
    if p.action == "nothing_to_do":
        head = f"a start would find nothing to do: {p.snapshot} is at the target"
    replay = (
        f", {fmt.plural(p.steps_to_replay, 'step')} to replay from stored rows"
        if p.steps_to_replay
        else ""
    )
    kept = f"{fmt.plural(p.siblings_reused, 'finished response')}, "
    kept += f"{fmt.count(p.tokens_reused)} tokens, {fmt.plural(p.groups_reused, 'whole group')}"
    if p.prefix_tokens_reused:
        kept += f"\n{fmt.count(p.prefix_tokens_reused)} tokens of unfinished responses"
    rows = [
        ("trainer", f"{p.anchor}, version {p.trainer_version}{replay}"),
        ("kept", kept),
        ("again", f"{fmt.plural(p.siblings_redispatched, 'response')} to generate"),
        ("taken", "" if p.age_s is None else f"{fmt.duration(p.age_s)} ago"),
        ("changed", "\n".join(p.changes)),
        ("not used", "\n".join(f"{cut}: {why}" for cut, why in p.rejected)),
        ("set aside", f"{', '.join(p.ignored)}: newer, by restore_mode" if p.ignored else ""),
        ("checked", f"every byte, in {fmt.duration(p.verify_s)}; nothing was changed"),
    ]
    return f"{head}\n{fmt.table([row for row in rows if row[1]])}"


def _passed(p: Planned) -> str:
    return "".join(f"\n  not used: {cut}: {why}" for cut, why in p.rejected)
