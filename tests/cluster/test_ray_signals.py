"""A process connected to Ray keeps its own way of stopping (P7)."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SCRIPT = """
import asyncio, os, signal, sys, time
from outlast.adapters.ray_session import SESSION
from outlast.adapters.ray_signals import take_signals_back
from outlast.config.schema import RaySection

async def main():
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("stop"))
    await asyncio.to_thread(SESSION.acquire, RaySection())
    take_signals_back()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(4)  # Ray's own handler would have aborted after three
    await asyncio.to_thread(SESSION.release)
    print(seen)

asyncio.run(main())
"""


def test_a_stop_request_is_heard_once_and_aborts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "['stop']"), done.stderr
