"""What a caller of TransferQueue sees when its queue is lost: a fault, never a cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, cast

import pytest

from outlast.adapters.planes.fence import Fence
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.adapters.planes.queue_rows import Queue


def queue_without_parts() -> Queue:
    return Queue(cast("Any", None), cast("Any", None))


@pytest.mark.parametrize("noticed", [True, False])
def test_a_call_that_ends_with_its_client_is_a_fault(noticed: bool) -> None:
    """Closing a lost queue cancels its calls, maybe before their callers have woken: had that
    passed as a cancellation, the caller's loop would have ended in silence."""

    async def scene() -> None:
        queue = queue_without_parts()
        queue.lost = asyncio.get_running_loop().create_future()
        asked: concurrent.futures.Future[int] = concurrent.futures.Future()
        answer = asyncio.create_task(queue.answer(asked))
        await asyncio.sleep(0)
        if noticed:
            queue.lost.set_result("storage unit 0 is dead")
        asked.cancel()
        expected = "storage unit 0 is dead" if noticed else "its client is closed"
        with pytest.raises(QueueFault, match=expected):
            await answer

    asyncio.run(scene())


def test_an_answer_that_came_counts_although_the_queue_is_lost() -> None:
    async def scene() -> None:
        queue = queue_without_parts()
        queue.lost = asyncio.get_running_loop().create_future()
        asked: concurrent.futures.Future[int] = concurrent.futures.Future()
        asked.set_result(7)
        queue.lost.set_result("its controller is dead")
        assert await queue.answer(asked) == 7

    asyncio.run(scene())


def test_a_cancelled_caller_is_cancelled_and_gives_its_call_up() -> None:
    async def scene() -> None:
        asked: concurrent.futures.Future[int] = concurrent.futures.Future()
        answer = asyncio.create_task(queue_without_parts().answer(asked))
        await asyncio.sleep(0)
        answer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answer
        await asyncio.sleep(0)
        assert asked.cancelled()

    asyncio.run(scene())


def test_a_still_moment_waits_for_changes_and_goes_before_later_ones() -> None:
    async def scene() -> None:
        fence, seen, end = Fence(), list[str](), asyncio.Event()

        async def change(name: str, until: asyncio.Event | None = None) -> None:
            async with fence.change():
                seen.append(f"{name} begins")
                if until is not None:
                    await until.wait()
                seen.append(f"{name} ends")

        async def still() -> None:
            async with fence.still(timeout_s=5):
                seen.append("still")
                await asyncio.sleep(0)

        first = asyncio.create_task(change("early", end))
        await asyncio.sleep(0)
        others = [asyncio.create_task(still())]
        await asyncio.sleep(0)
        others.append(asyncio.create_task(change("late")))
        await asyncio.sleep(0)
        assert seen == ["early begins"]
        end.set()
        await asyncio.gather(first, *others)
        assert seen == ["early begins", "early ends", "still", "late begins", "late ends"]

    asyncio.run(scene())


def test_a_still_moment_that_never_comes_is_given_up_and_changes_go_on() -> None:
    async def scene() -> None:
        fence = Fence()
        async with fence.change():
            with pytest.raises(TimeoutError):
                async with fence.still(timeout_s=0.01):
                    raise AssertionError("still although a change is under way")
            async with asyncio.timeout(5), fence.change():
                pass
        async with fence.still(timeout_s=1):
            pass

    asyncio.run(scene())
