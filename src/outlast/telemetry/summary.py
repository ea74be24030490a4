"""Reads what the JSONL sink wrote: for `status`, and for anything else that looks at a run.

The files are a convenience, never the truth: a torn or foreign line is skipped, and a
run without them is still judged from its durable state. May import: `telemetry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from outlast.telemetry.events import AnyEvent, Restored, RunStarted
from outlast.telemetry.progress import Progress
from outlast.telemetry.sinks import DIRECTORY

TAIL_BYTES = 4 << 20
"""Enough for the last steps of a large run, read in milliseconds."""
HEAD_BYTES = 64 << 10

_NAME = re.compile(r"inc_([0-9]{6,})\.jsonl")
_EVENTS: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


class _Stamp(msgspec.Struct):
    wall: float


_STAMPS = msgspec.json.Decoder(_Stamp)


@dataclass(frozen=True, slots=True)
class Stamped:
    """An event and when it was emitted, in seconds since the epoch."""

    wall: float
    event: AnyEvent


def decode_line(line: bytes) -> Stamped | None:
    """The event of one line; None for a torn line or an event of another release."""
    try:
        return Stamped(_STAMPS.decode(line).wall, _EVENTS.decode(line))
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


def telemetry_files(run_dir: Path) -> dict[int, Path]:
    """Telemetry files of a run by incarnation, in order."""
    directory = run_dir / DIRECTORY
    found = {}
    for path in directory.iterdir() if directory.is_dir() else ():
        match = _NAME.fullmatch(path.name)
        if match:
            found[int(match.group(1))] = path
    return dict(sorted(found.items()))


def read_events(path: Path, *, tail_bytes: int | None = None) -> Iterator[Stamped]:
    """Events of a file in order; with `tail_bytes` only those in the last part of it."""
    with path.open("rb") as file:
        if tail_bytes is not None:
            size = file.seek(0, 2)
            file.seek(max(0, size - tail_bytes))
            if size > tail_bytes:
                file.readline()  # the line that the cut went through
        for line in file:
            stamped = decode_line(line)
            if stamped is not None:
                yield stamped


def read_progress(run_dir: Path, incarnation: int) -> Progress | None:
    """What the events of one incarnation say, from its start and its end; None without a file."""
    path = telemetry_files(run_dir).get(incarnation)
    if path is None:
        return None
    progress = Progress()
    if path.stat().st_size > TAIL_BYTES:
        for stamped in _head(path):
            progress(stamped.event, stamped.wall)
    for stamped in read_events(path, tail_bytes=TAIL_BYTES):
        progress(stamped.event, stamped.wall)
    return progress


def read_start(run_dir: Path, incarnation: int) -> Restored | None:
    """The restore report of one incarnation, if its telemetry was kept and it restored anything."""
    path = telemetry_files(run_dir).get(incarnation)
    events = () if path is None else _head(path)
    return next((s.event for s in events if isinstance(s.event, Restored)), None)


def _head(path: Path) -> Iterator[Stamped]:
    with path.open("rb") as file:
        for line in file.read(HEAD_BYTES).splitlines():
            stamped = decode_line(line)
            if stamped is not None and isinstance(stamped.event, RunStarted | Restored):
                yield stamped
