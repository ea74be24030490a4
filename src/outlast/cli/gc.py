"""`outlast gc RUN --dry-run`: what retention and a sweep would remove, and what that frees.

May import: `durable`, `cli`.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.recipes import Given, Overrides

if TYPE_CHECKING:
    from outlast.config.schema import Recipe
    from outlast.durable.anchors import Score
    from outlast.durable.collection import Removal
    from outlast.durable.manifest import Manifest, RunListing


def gc(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Required: a run removes by itself.")
    ] = False,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what retention and the sweep of the next start would remove; remove nothing."""
    from outlast.cli.output import FILES, open_run, print_json
    from outlast.cli.recipes import recipe_of
    from outlast.durable.collection import Keep, removals

    if not dry_run:
        raise typer.BadParameter(
            "give --dry-run; a run removes what it supersedes after each save, and debris when it "
            "starts"
        )
    run_dir, listing = open_run(run)
    settings = recipe_of(run, recipe, overrides=overrides).recipe
    keep = Keep(
        latest_k=settings.rollout_checkpointing.keep_latest_k,
        top_k=settings.checkpointing.keep_top_k,
        score=_score(settings, run_dir, listing=listing),
    )
    found = removals(FILES, run_dir, listing=listing, keep=keep)
    print_json(found) if as_json else typer.echo(_text(found))


def _score(recipe: Recipe, run_dir: PurePosixPath, *, listing: RunListing) -> Score:
    """As the run ranks its checkpoints; metrics of later validations stand in the newest cut."""
    from outlast.cli.output import FILES
    from outlast.durable.cuts import peek_cut
    from outlast.durable.lineage import lineage_cuts

    metric = recipe.checkpointing.metric_name
    newest = lineage_cuts(listing)[-1:]
    later = peek_cut(FILES, run_dir, found=newest[0]).metrics if newest else {}

    def score(manifest: Manifest) -> float | None:
        recorded = later.get(str(manifest.trainer_version), {}) | manifest.metrics
        return recorded.get(metric or "", float("-inf"))

    return score


def _text(found: tuple[Removal, ...]) -> str:
    from outlast.cli import format as fmt
    from outlast.cli.output import columns

    if not found:
        return "nothing would be removed"
    rows = [(r.path, r.by, fmt.size(r.bytes), fmt.size(r.frees), r.why) for r in found]
    freed = fmt.size(sum(r.frees for r in found))
    table = columns(("path", "by", "size", "frees", "why"), rows)
    return f"{table}\n{fmt.plural(len(found), 'thing')} would go and free {freed}; nothing did"
