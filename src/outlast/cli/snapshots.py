"""`outlast snapshots RUN`: list the cuts of a run, show, verify, compare and judge them.

May import: `durable`, `model`, `cli`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.exits import Exit
from outlast.cli.recipes import Given, Overrides

if TYPE_CHECKING:
    from outlast.cli.cuts import Contents
    from outlast.durable.manifest import RunListing


class Action(StrEnum):
    """What to do with the cuts."""

    LIST = "list"
    SHOW = "show"
    VERIFY = "verify"
    DIFF = "diff"
    WHY = "why"


def snapshots(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.LIST,
    cut: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="snapshot_000007, 7 or step_000012."),
    ] = None,
    other: Annotated[
        str | None, typer.Argument(metavar="[B]", help="diff: the cut to compare with.")
    ] = None,
    recipe: Given = None,
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the published cuts; show or verify one; what differs; why it can be restored or not."""
    from outlast.cli import cuts
    from outlast.cli.output import open_run, patiently, print_json

    _check_arguments(action, cut, other=other, judged=bool(recipe or overrides))
    if action is Action.WHY:
        from outlast.cli import compare

        verdict = compare.explain(run, cut, recipe=recipe, overrides=overrides)
        print_json(verdict) if as_json else typer.echo(compare.why_text(verdict))
    elif action is Action.DIFF:
        from outlast.cli import compare

        difference = patiently(
            run, lambda at, listing: compare.diff(at, listing, names=(cut, other))
        )
        print_json(difference) if as_json else typer.echo(compare.diff_text(difference))
    elif action is Action.SHOW:
        contents = patiently(run, lambda at, listing: _contents(at, listing, cut=cut))
        print_json(contents) if as_json else typer.echo(cuts.view(contents))
    elif action is Action.LIST:
        _, listing = open_run(run)
        rows = cuts.rows(listing)
        print_json(rows) if as_json else typer.echo(cuts.table(rows, listing))
    else:
        _verify(run, cut, as_json=as_json)


def _contents(run_dir: PurePosixPath, listing: RunListing, *, cut: str | None) -> Contents:
    from outlast.cli import cuts

    found = cuts.newest(listing) if cut is None else cuts.find(listing, cut)
    return cuts.contents(run_dir, found, listing=listing)


def _verify(run: Path, cut: str | None, *, as_json: bool) -> None:
    from outlast.cli import cuts
    from outlast.cli.output import open_run, print_json

    run_dir, listing = open_run(run)
    asked = listing.cuts if cut is None else (cuts.find(listing, cut),)
    verdicts = cuts.verify(run_dir, asked, listing=listing, quiet=as_json)
    if as_json:
        print_json(verdicts)
    else:
        typer.echo("\n".join(map(cuts.verdict_line, verdicts)) or "no cut to verify")
    if any(verdict.state == "corrupt" for verdict in verdicts):
        raise typer.Exit(Exit.REFUSED)


def _check_arguments(action: Action, cut: str | None, *, other: str | None, judged: bool) -> None:
    if (action is Action.DIFF) != (other is not None):
        raise typer.BadParameter("diff takes two cuts: `snapshots RUN diff A B`; the others one")
    if judged and action is not Action.WHY:
        raise typer.BadParameter("--recipe and --set belong to `snapshots RUN why ID`")
    if cut is not None and action is Action.LIST:
        raise typer.BadParameter("list takes no cut; `show` shows one")
