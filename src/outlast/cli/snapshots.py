"""`outlast snapshots RUN`: list the cuts of a run, show what one holds, verify every byte.

May import: `durable`, `model`, `cli`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.exits import Exit


class Action(StrEnum):
    """What to do with the cuts."""

    LIST = "list"
    SHOW = "show"
    VERIFY = "verify"


def snapshots(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    action: Annotated[Action, typer.Argument(help="list, show ID or verify [ID].")] = Action.LIST,
    cut: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="snapshot_000007, 7 or step_000012."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """List the published cuts, show one, or verify every byte."""
    from outlast.cli import cuts
    from outlast.cli.output import open_run, print_json

    run_dir, listing = open_run(run)
    wanted = None if cut is None else cuts.find(listing, cut)
    if action is Action.LIST:
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
