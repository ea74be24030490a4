"""The end of a sharded trainer waits for every write in flight; ranks are doubles here."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("ray")

from outlast.adapters.trainers.sharded_actors import RankActors
from outlast.adapters.trainers.sharded_rank import Reply


class Call:
    """What a remote method gives: a reference with a future."""

    def __init__(self, future: Future[Reply]) -> None:
        self._future = future

    def future(self) -> Future[Reply]:
        return self._future


class Method:
    def __init__(self, rank: Rank, name: str) -> None:
        self._rank, self._name = rank, name

    def remote(self, *arguments: Any, **_: Any) -> Call:
        future: Future[Reply] = Future()
        if self._name == "write":
            self._rank.writes[arguments[0]] = future
        else:
            self._rank.log.append(self._name)
            future.set_result(Reply())
        return Call(future)


class Rank:
    """A rank whose writes end when the test says so."""

    def __init__(self) -> None:
        self.writes: dict[int, Future[Reply]] = {}
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def kill(self, _: object, no_restart: bool) -> None:
        self.log.append("kill")


def test_a_farewell_waits_for_every_write_in_flight() -> None:
    async def scenario() -> None:
        rank = Rank()
        ranks = RankActors(rank, [rank], timeout_s=5)
        writes = [asyncio.ensure_future(ranks.beside("write", number)) for number in (1, 2)]
        await asyncio.sleep(0)
        farewell = asyncio.ensure_future(ranks.farewell())
        await asyncio.sleep(0.05)
        rank.writes[1].set_result(Reply())
        await asyncio.sleep(0.2)
        assert rank.log == []  # neither told to leave nor killed: the second write is not done
        rank.writes[2].set_result(Reply())
        await farewell
        assert rank.log[0] == "leave" and "kill" in rank.log
        await asyncio.gather(*writes)

    asyncio.run(scenario())
