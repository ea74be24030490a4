"""Exit codes and the one place where an error leaves the program (DESIGN 14).

An `OutlastError` becomes its message on stderr and its own code, never a traceback; anything else
is a bug, shown with its traceback, code 70. May import: `errors`, typer.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec

import typer

from outlast.errors import OutlastError

P = ParamSpec("P")


class Exit(IntEnum):
    """What a script may rely on."""

    DONE = 0
    REFUSED = 65
    STALLED = 69
    INVARIANT = 70
    DISK = 74
    PREEMPTED = 75
    RECIPE = 78


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """The boundary of a command: errors become messages and exit codes."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except OutlastError as error:
            typer.echo(f"outlast: {error}", err=True)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            _leave_the_pipe()
            raise typer.Exit(Exit.DONE) from None
        except Exception as error:  # boundary: command line
            if isinstance(error, typer.Exit | typer.Abort | typer.BadParameter):
                raise
            traceback.print_exc()
            typer.echo("outlast: this is a bug; published snapshots stand as they are", err=True)
            raise typer.Exit(Exit.INVARIANT) from None

    return run


def _leave_the_pipe() -> None:
    """The reader has gone (`| head`): keep the interpreter from complaining about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
