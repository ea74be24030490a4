"""A process that a user's reward forks is not the run: its signals neither stop nor bind it."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import asyncio, multiprocessing, os, signal, time
from outlast.adapters.environments.reward_calls import in_thread
from outlast.cli.signals import driven

def reward():
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    worker.start()
    time.sleep(0.3)
    worker.terminate()
    worker.join(10)
    ended = worker.exitcode
    worker.kill()
    return ended

class Run:
    stopped = "never"

    async def run(self):
        print("worker", await in_thread(reward), flush=True)
        await asyncio.sleep(0.5)
        print("stopped", self.stopped, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.5)
        print("stopped", self.stopped, flush=True)

    def stop(self, reason):
        self.stopped = reason

asyncio.run(driven(Run(), grace_s=60.0))
"""


def test_ending_a_worker_of_a_reward_stops_the_worker_and_not_the_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["worker -15", "stopped never", "stopped SIGTERM"]
