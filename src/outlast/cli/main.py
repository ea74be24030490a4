"""`outlast`: the commands. Each imports what it needs when it runs, so that `--help` is quick.

May import: `cli`, typer. Loads no torch.
"""

from __future__ import annotations

from typing import Annotated

import typer

import outlast
from outlast.cli.audit import audit
from outlast.cli.evaluate import evaluate
from outlast.cli.exits import guarded
from outlast.cli.export import export
from outlast.cli.fork import fork
from outlast.cli.gc import gc
from outlast.cli.plan import plan
from outlast.cli.restore import restore
from outlast.cli.rollouts import rollouts
from outlast.cli.snapshots import snapshots
from outlast.cli.status import status
from outlast.cli.train import train

app = typer.Typer(
    name="outlast",
    help="Asynchronous RL post-training whose rollouts outlast the process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"outlast {outlast.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Asynchronous RL post-training whose rollouts outlast the process."""


for _command in (train, status, snapshots, rollouts, audit, fork, restore, gc, plan, export):
    app.command()(guarded(_command))
app.command("eval")(guarded(evaluate))  # a name that Python keeps for itself
