"""The connection to Ray: who joins, how it ends, and what a kill -9 of its owner leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("ray")

from outlast.adapters.ray_session import RaySession, import_ray
from outlast.config.schema import RaySection
from outlast.errors import RecipeError
from outlast.testing.processes import Process, descendants, living

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

OWNER = """
import os, signal, time
before = signal.getsignal(signal.SIGTERM)
from outlast.adapters.ray_session import SESSION
from outlast.config.schema import RaySection

ray = SESSION.acquire(RaySection())
assert SESSION.acquire(RaySection()) is ray
assert signal.getsignal(signal.SIGTERM) is before, "Ray has taken SIGTERM from the run"

@ray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

actor = Actor.remote()
ray.get(actor.pid.remote())
assert "OUTLAST_RAY_CLUSTER" not in os.environ, "later children would be taken for Ray's"
{fork}
print("ready", flush=True)
{then}
"""
FORKED = "if os.fork() == 0: time.sleep(600)"


def owner(then: str, *, fork: str = "") -> subprocess.Popen[str]:
    environment = {name: v for name, v in os.environ.items() if not name.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then, fork=fork)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def left(processes: list[Process], *, seconds: float) -> list[Process]:
    """Those that still live after at most `seconds`."""
    pids, until = {process.pid for process in processes}, time.monotonic() + seconds
    while found := [process for process in living() if process.pid in pids]:
        if time.monotonic() > until:
            return found
        time.sleep(0.1)
    return []


@pytest.mark.parametrize("fork", ["", FORKED], ids=["alone", "with a fork that holds the pipe"])
def test_a_killed_owner_leaves_no_process_of_its_cluster(fork: str) -> None:
    with owner("time.sleep(600)", fork=fork) as process:
        time.sleep(2)  # the agents of Ray come after it says that it is ready
        below = descendants(process.pid)
        forks = [p for p in below if "outlast" in p.command and "reaper" not in p.command]
        cluster = [p for p in below if p not in forks]
        assert any("raylet" in p.command for p in cluster) and len(cluster) >= 4
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        try:
            assert left(cluster, seconds=20) == []
        finally:
            for fork_of_ours in forks:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(fork_of_ours.pid, signal.SIGKILL)


def test_the_last_release_ends_the_cluster() -> None:
    with owner("SESSION.release(); assert ray.is_initialized(); SESSION.release()") as process:
        below = descendants(process.pid)
        assert process.wait(60) == 0
        assert left(below, seconds=10) == []


def test_an_address_that_nobody_answers_is_refused_by_name() -> None:
    import_ray()
    session = RaySession()
    with pytest.raises(RecipeError, match=r"ray.address: no connection to 127.0.0.1:1"):
        session.acquire(RaySection(address="127.0.0.1:1"))
