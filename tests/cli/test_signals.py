"""P7 and L3 of the process itself: it leaves in time, whatever hangs."""

from __future__ import annotations

import subprocess
import sys
import time

HANGING = """
import asyncio
import time
from outlast.cli.signals import driven

class Sleeps:
    async def run(self):
        self.stopped = asyncio.Event()
        print("ready", flush=True)
        await (self.stopped.wait() if {obeys} else asyncio.sleep(60))

    def stop(self, reason):
        self.stopped.set()

asyncio.run(driven(Sleeps(), grace_s={grace}))
{after}
"""


def start(*, grace: float, after: str = "") -> subprocess.Popen[str]:
    """A process in the run; with `after` it obeys a stop and goes on with that."""
    code = HANGING.format(grace=grace, obeys=bool(after), after=after)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_l3_a_run_that_hangs_after_a_signal_leaves_when_the_grace_is_over() -> None:
    process = start(grace=0.5)
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75
    assert "the grace is over" in stderr and "the previous cut stands" in stderr


def test_a_second_signal_leaves_at_once() -> None:
    process = start(grace=60.0)
    process.terminate()
    time.sleep(0.5)
    began = time.monotonic()
    process.terminate()
    process.communicate(timeout=30)
    assert process.returncode == 75
    assert time.monotonic() - began < 20


def test_a_run_that_ended_in_time_is_not_overtaken_by_its_grace() -> None:
    """The deadline ends with the run: what the process does afterwards is its own business."""
    process = start(grace=0.5, after="time.sleep(2); print('alive')")
    process.terminate()
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, "alive\n")
