"""The real program as a child of the auditor: its own session, its tape, its log, its end.

Ends only what it started. May import: `telemetry`, `processes`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from outlast.telemetry.events import AnyEvent
from outlast.testing.processes import living

PROGRAM = (sys.executable, "-m", "outlast")
"""What the `outlast` script runs, with this interpreter."""
POLL_S = 0.01
ORPHANS_MAX_S = 2.0
"""How long a worker may outlive the program that started it."""


class _Stamp(msgspec.Struct):
    wall: float


@dataclass(frozen=True, slots=True)
class Taped:
    """One event with its wall time in seconds."""

    wall: float
    event: AnyEvent


class Child:
    """One life of `outlast train`. Use as a context manager: it is dead afterwards."""

    def __init__(
        self, arguments: Sequence[str], *, tape: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        self.tape = tape
        self.log = log
        self.events: list[Taped] = []
        self.spawned = time.time()
        self._offset = 0
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [*PROGRAM, "train", *arguments, "--tape", str(tape)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the child's whole session, if anything of it is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it lives; negative for a signal."""
        return self._process.poll()

    @property
    def stopped(self) -> bool:
        """Whether it stands still after a SIGSTOP, its own or ours; unknown, so False, on macOS."""
        if self.returncode is not None or not hasattr(os, "waitid"):
            return False
        options = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        found = os.waitid(os.P_PID, self.pid, options)
        return found is not None and found.si_code == os.CLD_STOPPED

    def stop(self, seconds: float) -> bool:
        """SIGSTOP, and wait until it stands still; False when it is dead, or never does."""
        self.signal(signal.SIGSTOP)
        until = time.monotonic() + seconds
        while self.returncode is None and time.monotonic() < until:
            if self.stopped:
                return True
            time.sleep(POLL_S / 10)
        return False

    def orphans(self) -> list[str]:
        """What it started and what outlives it, as ``pid command``; empty where /proc is not."""
        until = time.monotonic() + ORPHANS_MAX_S
        while (left := _session(self.pid)) and time.monotonic() < until:
            time.sleep(POLL_S)
        return left

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program alone, if it lives."""
        if self.returncode is None:
            self._process.send_signal(number)

    def read(self) -> list[Taped]:
        """Events taped since the last call; they are also kept in `events`."""
        if not self.tape.exists():
            return []
        with self.tape.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [_taped(line) for line in whole.splitlines()]
        self.events += new
        return new

    def wait(self, seconds: float, *, or_stopped: bool = False) -> bool:
        """Wait for its death (or until it stops itself), taping on; True when it is dead."""
        until = time.monotonic() + seconds
        while self.returncode is None and time.monotonic() < until:
            if or_stopped and self.stopped:
                break
            self.read()
            time.sleep(POLL_S)
        self.read()
        return self.returncode is not None

    def last_words(self) -> str:
        """The end of its output, for a report."""
        return self.log.read_text(errors="replace")[-2000:]


def _session(leader: int) -> list[str]:
    """Processes of a session but its leader."""
    return [
        f"{process.pid} {process.command[:80]}"
        for process in living()
        if process.session == leader and process.pid != leader
    ]


def _taped(line: bytes) -> Taped:
    return Taped(
        msgspec.json.decode(line, type=_Stamp).wall,
        msgspec.json.decode(line, type=AnyEvent),
    )
