"""The actors of a sharded trainer, seen from the controller: ordered calls, deadlines, deaths.

Keeps: calls that change training run one at a time, on all ranks in the same order, even after a
caller was cancelled; no call waits beyond its deadline; when a rank is lost, or ranks part ways,
all are killed and every later call says why. May import: ray (as given), `sharded_rank`'s values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.errors import InvariantError, OutlastError, StallAbort

GRACE_S = 5.0
"""After one rank failed: what the others get to say what they saw, before they are killed."""


class RankLost(OutlastError):
    """A rank of the sharded trainer is gone. Restart: the run goes on from its last snapshot."""

    exit_code = 69


class RankActors:
    """`size` actors of class `TrainerRank`."""

    def __init__(self, ray: Any, actors: Sequence[Any], *, timeout_s: float) -> None:
        self._ray = ray
        self._actors = tuple(actors)
        self._timeout_s = timeout_s
        self._turn = asyncio.Lock()
        self._left: Sequence[Any] = ()
        self._beside: list[Sequence[Any]] = []
        self._lost: OutlastError | None = None

    def __len__(self) -> int:
        return len(self._actors)

    async def ordered(self, method: str, *arguments: object, **named: object) -> list[Any]:
        """The same call on every rank, after all earlier ones; values in order of ranks."""
        return await self.dealt(method, [arguments] * len(self), **named)

    async def dealt(
        self, method: str, arguments: Sequence[Sequence[object]], **named: object
    ) -> list[Any]:
        """As `ordered`, with arguments of its own for each rank."""
        async with self._turn:
            await self._catch_up()
            return await self._run(method, self._send(method, arguments, named=named))

    async def _catch_up(self) -> None:
        """Wait for what a cancelled caller left running. Its error, if any, is this caller's."""
        if self._left:
            await self._run("the end of an interrupted call", self._left)

    async def _run(self, what: str, calls: Sequence[Any]) -> list[Any]:
        self._left = calls  # stands if this caller is cancelled, and only then
        try:
            values = await self._answers(what, calls)
        except OutlastError:
            self._left = ()
            raise
        self._left = ()
        return values

    async def beside(self, method: str, *arguments: object) -> list[Any]:
        """The same call on every rank, beside whatever else runs."""
        calls = self._send(method, [arguments] * len(self), named={})
        self._beside.append(calls)  # until they are answered, though the caller be cancelled
        try:
            values = await self._answers(method, calls)
        except OutlastError:
            self._beside.remove(calls)
            raise
        self._beside.remove(calls)
        return values

    async def first(self, method: str) -> Any:
        """A call on rank 0 alone."""
        if self._lost is not None:
            raise self._lost
        return (await self._answers(method, [getattr(self._actors[0], method).remote()]))[0]

    def tell(self, method: str, *arguments: object) -> None:
        """The same call on every rank, without waiting for it."""
        if self._lost is None:
            self._send(method, [arguments] * len(self), named={})

    async def farewell(self) -> None:
        """Let ranks that are well finish what they write, in bounded time; then end all."""
        try:
            for calls in tuple(self._beside):  # answered ones leave the list meanwhile
                await self._answers("what it writes", calls)
            calls = self._send("leave", [()] * len(self), named={})
            await self._answers("leave", calls, limit_s=GRACE_S)
        except OutlastError:
            pass  # they are ended anyway, and whoever used them heard of it
        finally:
            self.kill()

    def kill(self) -> None:
        """End all ranks at once. Idempotent."""
        for actor in self._actors:
            self._ray.kill(actor, no_restart=True)

    def _send(
        self, method: str, arguments: Sequence[Sequence[object]], *, named: Mapping[str, object]
    ) -> list[Any]:
        if self._lost is not None:
            raise self._lost
        pairs = zip(self._actors, arguments, strict=True)
        return [getattr(actor, method).remote(*given, **named) for actor, given in pairs]

    # ------------------------------------------------------------------------------ answers

    async def _answers(
        self, what: str, calls: Sequence[Any], *, limit_s: float | None = None
    ) -> list[Any]:
        futures = [asyncio.wrap_future(call.future()) for call in calls]
        for future in futures:
            future.add_done_callback(_seen)
        await self._settle(futures, limit_s=limit_s or self._timeout_s)
        failure = self._failure(what, futures)
        if failure is not None:
            raise failure
        return [future.result().value for future in futures]

    async def _settle(self, futures: Sequence[asyncio.Future[Any]], *, limit_s: float) -> None:
        """Wait for all; once one failed or the deadline passed, the others get a short grace."""
        loop = asyncio.get_running_loop()
        until, waiting = loop.time() + limit_s, set(futures)
        while waiting and (left := until - loop.time()) > 0:
            done, waiting = await asyncio.wait(
                waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if any(_failed(future) for future in done):
                until = min(until, loop.time() + GRACE_S)

    def _failure(self, what: str, futures: Sequence[asyncio.Future[Any]]) -> OutlastError | None:
        """What the call raises. Ranks that did not all answer alike are beyond use: killed."""
        silent = [rank for rank, future in enumerate(futures) if not future.done()]
        failed = [rank for rank, future in enumerate(futures) if _failed(future)]
        if not silent and not failed:
            return None
        if self._lost is not None:  # another call has killed them meanwhile
            return self._lost
        error = self._cause(what, futures, silent=silent)
        together = len(failed) == len(futures) and all(_refused(future) for future in futures)
        if not together:
            self._lost = error
            self.kill()
        return error

    def _cause(
        self, what: str, futures: Sequence[asyncio.Future[Any]], *, silent: Sequence[int]
    ) -> OutlastError:
        """The first of: a rank that died, an error raised on purpose, a bug, a deadline."""
        answered = [(rank, f) for rank, f in enumerate(futures) if f.done()]
        for rank, future in answered:
            if (death := future.exception()) is not None:
                return RankLost(
                    f"trainer rank {rank} of {len(self)} died during {what}: {_first_line(death)}; "
                    "the others were ended; run the same command again to go on"
                )
        replies = [(rank, future.result()) for rank, future in answered]
        for _, reply in replies:
            if reply.error is not None:
                return reply.error  # type: ignore[no-any-return]
        for rank, reply in replies:
            if reply.bug is not None:
                return InvariantError(f"trainer rank {rank} failed in {what}:\n{reply.bug}")
        return StallAbort(
            f"trainer ranks {', '.join(map(str, silent))} gave no answer to {what} in "
            f"{self._timeout_s:g} s (training.timeout_s); all were ended. Is there a place, and on "
            "cuda a GPU, for each of them on the cluster?"
        )


def _seen(future: asyncio.Future[Any]) -> None:
    """An error that nobody waits for any more is no news."""
    if not future.cancelled():
        future.exception()


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.done() and (future.exception() is not None or future.result().failed)


def _refused(future: asyncio.Future[Any]) -> bool:
    """Whether the rank is well and raised on purpose."""
    return future.exception() is None and future.result().error is not None


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
