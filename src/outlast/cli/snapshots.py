"""`outlast snapshots RUN`: list the cuts of a run, show, verify, compare and judge them.

May import: `durable`, `model`, `cli`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.exits import Exit
from outlast.cli.recipes import Given, Overrides


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
    from outlast.cli.output import open_run, print_json

    _check_arguments(action, cut, other=other, judged=bool(recipe or overrides))
    run_dir, listing = open_run(run)
    wanted = None if cut is None else cuts.find(listing, cut)
    if action is Action.DIFF or action is Action.WHY:
        from outlast.cli import compare

        found = wanted or cuts.newest(listing)
        if other is not None:
            b = cuts.find(listing, other)
            difference = compare.diff(run_dir, found, b=b, listing=listing)
            print_json(difference) if as_json else typer.echo(compare.diff_text(difference))
            return
        verdict = compare.explain(run, found, listing=listing, recipe=recipe, overrides=overrides)
        print_json(verdict) if as_json else typer.echo(compare.why_text(verdict))
    elif action is Action.LIST:
        rows = cuts.rows(listing)
        print_json(rows) if as_json else typer.echo(cuts.table(rows, listing))
    elif action is Action.SHOW:
        found = wanted or cuts.newest(listing)
        contents = cuts.contents(run_dir, found, listing=listing)
        print_json(contents) if as_json else typer.echo(cuts.view(contents))
    else:
        asked = listing.cuts if wanted is None else (wanted,)
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
