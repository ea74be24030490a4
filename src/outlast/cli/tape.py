"""The tape: every event of a life, written at once to a file that the run does not own.

For an observer outside of the process (a crash test, a debugger): what was written stands in the
page cache, so it survives `kill -9` to the last event, which the run's own telemetry, written once
a second, does not. May import: `telemetry`.
"""

from __future__ import annotations

import os
from pathlib import Path

from outlast.errors import RecipeError
from outlast.telemetry.events import AnyEvent
from outlast.telemetry.sinks import encode_line


class Tape:
    """A telemetry sink: one JSON line per event, one write each, never synced."""

    def __init__(self, path: Path) -> None:
        """Raises RecipeError when the file cannot be opened for appending."""
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise RecipeError(f"--tape {path} cannot be written: {error.strerror}") from error

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        os.write(self._file, encode_line(event, wall))

    def close(self) -> None:
        os.close(self._file)
