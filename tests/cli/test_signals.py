"""P7 and L3 of the process itself: it leaves in time, whatever hangs."""

from __future__ import annotations

import subprocess
import sys
import time

HANGING = """
import asyncio
import os
import signal
import time
from outlast.cli.signals import driven

class Sleeps:
    async def run(self):
        self.stopped = asyncio.Event()
        print("ready", flush=True)
        {first}
        await (self.stopped.wait() if {obeys} else asyncio.sleep(60))

    def stop(self, reason):
        self.stopped.set()

asyncio.run(driven(Sleeps(), grace_s={grace}))
{after}
"""


def start(*, grace: float, after: str = "", first: str = "pass") -> subprocess.Popen[str]:
    """A process in the run; with `after` it obeys a stop and goes on with that.

    `first` is done on the event loop, which it holds meanwhile.
    """
    code = HANGING.format(grace=grace, obeys=bool(after), after=after, first=first)
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


def test_the_deadline_ends_with_the_run_although_a_child_lives_on() -> None:
    fork = "os.fork() or time.sleep(4) or os._exit(0)"
    process = start(grace=0.5, first=fork, after="time.sleep(2); print('alive')")
    process.terminate()
    stdout, _ = process.communicate(timeout=30)
    assert (process.returncode, stdout) == (0, "alive\n")


FILL = "[asyncio.get_running_loop().call_soon_threadsafe(int) for _ in range(1_000_000)]"
"""Many times what the pipe that wakes the loop can hold."""


def test_a_signal_is_not_lost_in_a_loop_that_is_behind() -> None:
    held = f"{FILL}; os.kill(os.getpid(), signal.SIGTERM)"
    process = start(grace=60.0, first=held, after="print('stopped')")
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (0, "stopped\n")


def test_the_grace_counts_while_the_loop_itself_is_held() -> None:
    process = start(grace=0.5, first="time.sleep(100)")
    process.terminate()
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 75 and "the grace is over" in stderr
