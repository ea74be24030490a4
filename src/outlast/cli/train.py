"""`outlast train`: start a run, or resume it. The same command does both.

May import: everything below the command line, when it runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Never

import typer

from outlast.cli.exits import Exit
from outlast.errors import Preempted

if TYPE_CHECKING:
    from types import FrameType

    from outlast.cli.live import Display
    from outlast.config.load import LoadedRecipe
    from outlast.runtime.controller import Outcome
    from outlast.telemetry.bus import Sink

RUNS = Path("runs")


def train(
    *,
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe file; none: the built-in demo.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="a.b=v", help="Override a recipe key.")
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Run directory; else checkpointing.checkpoint_dir, else runs/RECIPE."),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Refuse to resume anything.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Overrule a fresh lock of another host.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Events as JSON lines.")] = False,
    tape: Annotated[
        Path | None,
        typer.Option(help="Also write every event to this file at once, for an outside observer."),
    ] = None,
    preempt_exit_code: Annotated[
        int, typer.Option(min=0, max=255, help="Exit code after SIGTERM.")
    ] = int(Exit.PREEMPTED),
) -> None:
    """Start the run, or resume it where its newest snapshot stands."""
    from outlast.cli.wiring import Launch, run_training
    from outlast.config.load import load_recipe, recipe_path
    from outlast.runtime.controller import Ending

    loaded = load_recipe(recipe, overrides or ())
    _warn(loaded)
    directory = run_dir or _directory(loaded, stem=recipe_path(recipe).stem)
    launch = Launch(run_dir=directory, fresh=fresh, take_over=take_over)
    sys.path.insert(0, os.getcwd())  # where a recipe's module:function is looked up first
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _too_early)
    try:
        with _display(loaded, as_json=as_json) as display, _taped(tape) as taped:
            outcome = run_training(loaded, launch, sinks=(*taped, display))
    except Preempted as error:
        typer.echo(f"outlast: {error}", err=True)
        raise typer.Exit(preempt_exit_code) from None
    farewell = _farewell(outcome, directory)
    if farewell is not None:
        typer.echo(f"outlast: {farewell}", err=True)
    if outcome.ending is Ending.PREEMPTED:
        raise typer.Exit(preempt_exit_code)


def _warn(loaded: LoadedRecipe) -> None:
    """Refuse what cannot run; say what will cost something."""
    from outlast.runtime.guards import check_recipe

    for warning in check_recipe(loaded.recipe, cores=os.cpu_count()):
        typer.echo(f"warning: {warning}", err=True)


def _directory(loaded: LoadedRecipe, *, stem: str) -> Path:
    configured = loaded.recipe.checkpointing.checkpoint_dir
    return Path(configured) if configured else RUNS / stem


def _display(loaded: LoadedRecipe, *, as_json: bool) -> Display:
    from outlast.cli.live import Silent, open_display

    if as_json or loaded.recipe.telemetry.console:
        return open_display(as_json=as_json)
    return Silent()


@contextlib.contextmanager
def _taped(path: Path | None) -> Iterator[tuple[Sink, ...]]:
    """The tape, first among the sinks; nothing without `--tape`."""
    if path is None:
        yield ()
        return
    from outlast.cli.tape import Tape

    tape = Tape(path)
    try:
        yield (tape,)
    finally:
        tape.close()


def _too_early(number: int, _: FrameType | None) -> Never:
    """A stop request before the run has its own handlers."""
    name = signal.Signals(number).name
    raise Preempted(f"{name} before anything was started; what stands on disk is as it was")


def _farewell(outcome: Outcome, directory: Path) -> str | None:
    """What stderr should hear: that there is work left, or that there was none."""
    stands = f"{outcome.last_cut} stands in {directory}" if outcome.last_cut else "nothing stands"
    if outcome.ending.value == "preempted":
        return f"preempted ({outcome.reason}): {stands}. Run the same command to continue"
    if outcome.ending.value == "nothing_to_do":
        return f"nothing to do: {outcome.reason}. {stands}"
    return None
