"""The simulated loop: asyncio's tools work on it, time is virtual, order comes from the seed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from outlast.testing.loop import Deadlock, Livelock, SimLoop, bury


def drive(work: Coroutine[Any, Any, Any], *, seed: int = 0) -> tuple[Any, float]:
    """(result, virtual time at the end) of `work` on a new loop."""
    loop = SimLoop(random.Random(seed))
    task = loop.create_task(work)
    loop.advance(task.done)
    return task.result(), loop.time()


def test_time_is_virtual_and_exact() -> None:
    async def work() -> list[str]:
        order: list[str] = []

        async def after(seconds: float, name: str) -> None:
            await asyncio.sleep(seconds)
            order.append(name)

        await asyncio.gather(after(3600, "slow"), after(1, "fast"), after(60, "middle"))
        return order

    assert drive(work()) == (["fast", "middle", "slow"], 3600.0)


def test_timeouts_groups_locks_and_semaphores_work() -> None:
    async def work() -> tuple[int, int]:
        lock, slots, inside, most = asyncio.Lock(), asyncio.Semaphore(2), 0, 0

        async def one() -> None:
            nonlocal inside, most
            async with slots:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(1)
                async with lock:
                    await asyncio.sleep(0.1)
                inside -= 1

        async with asyncio.TaskGroup() as tasks:
            for _ in range(5):
                tasks.create_task(one())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(10)
        return most, inside

    (most, inside), _ = drive(work())
    assert (most, inside) == (2, 0)


def test_order_comes_from_the_seed() -> None:
    async def work() -> list[int]:
        order: list[int] = []

        async def one(number: int) -> None:
            await asyncio.sleep(0)
            order.append(number)

        await asyncio.gather(*(one(n) for n in range(20)))
        return order

    orders = [drive(work(), seed=seed)[0] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(20))


def test_a_failing_task_group_cancels_its_siblings_in_one_order() -> None:
    async def work() -> list[int]:
        ended: list[int] = []

        async def waits(number: int) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                ended.append(number)

        async def fails() -> None:
            await asyncio.sleep(1)
            raise ValueError

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                for number in range(12):
                    tasks.create_task(waits(number))
                tasks.create_task(fails())
        return ended

    assert drive(work(), seed=3) == drive(work(), seed=3)


def test_L4_a_deadlock_is_reported_with_the_tasks_that_wait() -> None:
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    loop = SimLoop(random.Random(0))
    task = loop.create_task(work(), name="the-waiter")
    with pytest.raises(Deadlock, match="the-waiter"):
        loop.advance(task.done)
    loop.close()


def test_L4_a_livelock_is_reported() -> None:
    async def work() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    loop = SimLoop(random.Random(0))
    task = loop.create_task(work(), name="the-spinner")
    with pytest.raises(Livelock, match="the-spinner"):
        loop.advance(task.done)
    loop.close()


def test_what_a_callback_raises_is_not_lost() -> None:
    loop = SimLoop(random.Random(0))

    def fails() -> None:
        raise ValueError("boom")

    loop.call_soon(fails)
    with pytest.raises(ValueError, match="boom"):
        loop.advance(lambda: False)


def test_driving_stops_in_time() -> None:
    async def work() -> None:
        await asyncio.sleep(10)

    loop = SimLoop(random.Random(0))
    task = loop.create_task(work())
    assert loop.advance(task.done, before=4.0) is False
    assert loop.time() == 4.0
    assert loop.advance(task.done, before=20.0) is True
    assert loop.time() == 10.0


def test_a_buried_task_never_goes_on() -> None:
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
            seen.append("went on")
        finally:
            await asyncio.sleep(1)
            seen.append("cleaned up")

    loop = SimLoop(random.Random(0))
    task = loop.create_task(work())
    loop.advance(lambda: False, before=1.0)
    bury(task)
    loop.close()
    assert seen == []
