"""vLLM's processes die, or the one that started them does: nothing hangs and nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.config.schema import GenerationSection
from outlast.errors import InfrastructureFailure
from tests.contracts.engine_contract import respond
from tests.vllm.models import NEEDS_VLLM, initial_state, request, save_long_tiny, scaled

pytestmark = NEEDS_VLLM

OWNER = """
import asyncio, sys
from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.config.schema import GenerationSection

async def main():
    engine = VllmEngine(model_path=sys.argv[1], generation=GenerationSection(max_batch_size=4))
    print("starting", flush=True)
    await engine.start()
    print("started", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def _descendants(pid: int) -> set[int]:
    """Living processes below `pid`."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                parents[int(entry.name)] = int(fields[1])
    found, size = {pid}, 0
    while len(found) > size:
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {pid}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def _wait_gone(pids: set[int], *, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while any(map(_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {sorted(filter(_alive, pids))}"
        time.sleep(0.1)


@pytest.mark.parametrize("victim", ["core", "worker"])
def test_death_of_vllm_fails_every_stream_and_every_later_call(tmp_path: Path, victim: str) -> None:
    directory = save_long_tiny(tmp_path / "model")
    state = initial_state(directory)

    async def work() -> None:
        engine = VllmEngine(
            model_path=str(directory), generation=GenerationSection(max_batch_size=8)
        )
        before = _descendants(os.getpid())
        await engine.start()
        children = _descendants(os.getpid()) - before
        await engine.update_weights(scaled(state, 0))
        streams = [
            asyncio.ensure_future(respond(engine, request(f"s{n}", tokens=1900))) for n in range(4)
        ]
        await asyncio.sleep(1.0)
        assert not any(stream.done() for stream in streams)
        os.kill(_named(children, core=victim == "core"), signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*streams, return_exceptions=True), 60)
        assert [type(result) for result in results] == [InfrastructureFailure] * 4
        with pytest.raises(InfrastructureFailure):
            await respond(engine, request("late"))
        with pytest.raises(InfrastructureFailure):
            await asyncio.wait_for(engine.update_weights(scaled(state, 1)), 30)
        begun = time.monotonic()
        await asyncio.wait_for(engine.close(), 60)
        assert time.monotonic() - begun < 30
        _wait_gone(children, within_s=30)

    asyncio.run(work())


def _named(pids: set[int], *, core: bool) -> int:
    """vLLM's core process or its worker."""
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids if _alive(pid)}
    part = b"EngineCore" if core else b"Worker"
    return next(pid for pid, name in names.items() if part in name)


def test_an_update_in_flight_fails_when_vllm_dies(tmp_path: Path) -> None:
    directory = save_long_tiny(tmp_path / "model")
    state = initial_state(directory)

    async def work() -> None:
        engine = VllmEngine(
            model_path=str(directory), generation=GenerationSection(max_batch_size=8)
        )
        before = _descendants(os.getpid())
        await engine.start()
        children = _descendants(os.getpid()) - before
        try:
            await engine.update_weights(scaled(state, 0))
            os.kill(_named(children, core=False), signal.SIGSTOP)  # it will never answer
            update = asyncio.ensure_future(engine.update_weights(scaled(state, 1)))
            await asyncio.sleep(0.5)
            assert not update.done()
            os.kill(_named(children, core=True), signal.SIGKILL)
            with pytest.raises(InfrastructureFailure):
                await asyncio.wait_for(update, 60)
            assert engine.served == scaled(state, 0).version
        finally:
            for pid in filter(_alive, children):
                os.kill(pid, signal.SIGCONT)
            await engine.close()
        _wait_gone(children, within_s=30)

    asyncio.run(work())


@pytest.mark.parametrize("moment", ["started", "starting"])
def test_processes_of_the_engine_end_with_their_owner(tmp_path: Path, moment: str) -> None:
    directory = save_long_tiny(tmp_path / "model")
    script = tmp_path / "owner.py"
    script.write_text(OWNER, encoding="utf-8")
    owner = subprocess.Popen(
        [sys.executable, str(script), str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        while owner.stdout.readline().strip() != moment:
            assert owner.poll() is None
        deadline = time.monotonic() + 240
        while not (children := _descendants(owner.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        if moment == "starting":
            time.sleep(3)  # vLLM's core is being imported; its worker may not exist yet
            children |= _descendants(owner.pid)
    finally:
        owner.kill()
        owner.wait()
        if owner.stdout is not None:
            owner.stdout.close()
    known = set(children)
    deadline = time.monotonic() + 60
    while any(map(_alive, known)):
        for pid in list(known):
            known |= _descendants(pid)
        assert time.monotonic() < deadline, f"still alive: {sorted(filter(_alive, known))}"
        time.sleep(0.2)
