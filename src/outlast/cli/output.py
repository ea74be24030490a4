"""What every query shares: the run directory it is given, JSON out, and a table for people.

May import: `durable`, `errors`, typer, rich.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import msgspec
import typer

from outlast.cli import format as fmt
from outlast.durable.files import PosixFiles
from outlast.durable.listing import Depth, read_run
from outlast.durable.manifest import RunListing
from outlast.errors import CorruptData, ForeignRun, RefusedState

T = TypeVar("T")
FILES = PosixFiles()


def open_run(run: Path, *, verify: Depth = "manifest") -> tuple[PurePosixPath, RunListing]:
    """Absolute path and listing of a run directory. Raises ForeignRun when it is none."""
    run_dir = PurePosixPath(run.absolute())
    if not run.is_dir():
        raise ForeignRun(f"{run}: found no such directory; required is the directory of a run")
    listing = read_run(FILES, run_dir, verify=verify)
    if listing.run is None and (listing.cuts or listing.strangers):
        raise ForeignRun(f"{run}: found no run.json; required is the directory of a run")
    return run_dir, listing


TRIES = 20
"""Fresh looks at a run that publishes and retains while it is read."""


def patiently(
    run: Path, work: Callable[[PurePosixPath, RunListing], T], *, verify: Depth = "manifest"
) -> T:
    """`work` on the listing of `run`; on a new one when a cut has gone since it was listed.

    A live run retains: what `work` then raises says nothing of the run. Raises what `open_run` and
    `work` raise.
    """
    for left in reversed(range(TRIES)):
        run_dir, listing = open_run(run, verify=verify)
        try:
            return work(run_dir, listing)
        except (CorruptData, RefusedState, FileNotFoundError):
            if not left or not has_gone(run_dir, listing):
                raise
    raise AssertionError("the last try returns or raises")


def has_gone(run_dir: PurePosixPath, listing: RunListing) -> bool:
    """Whether a cut of the listing has been removed since."""
    return any(not FILES.exists(run_dir / found.path) for found in listing.cuts)


def print_json(value: object) -> None:
    """One JSON document on stdout, indented for people who look at it anyway."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Labels and values; rows without a value are left out."""
    typer.echo(fmt.table([(label, text) for label, text in rows if text]))


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain table: columns as wide as their widest cell, two spaces between them."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    )


def moment(wall: float) -> str:
    """Local date and time of seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))


def ago(wall: float) -> str:
    """How long ago something was stamped; clocks of two machines may differ."""
    return f"{fmt.duration(max(0.0, time.time() - wall))} ago"
