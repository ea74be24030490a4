"""Processes that play the ranks of a sharded trainer, without Ray: started once, used by all tests.

What they run is a function of an importable module, called as ``work(ranks, *arguments)``; it may
use as many of them as it likes, and what it returns or raises must pickle.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from outlast.adapters.role_thread import use_threads
from outlast.adapters.trainers.sharded_group import Meeting, Ranks, open_store

PATIENCE_S = 60.0


class RankPool:
    """`size` processes. Call it with a number of ranks and what they do."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends: list[Connection] = []
        self.processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ends.append(ours)
            self.processes.append(process)

    def __call__(self, size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `work` returns on each of `size` ranks. Raises what the first failing one raised."""
        ends = self._ends[:size]
        ends[0].send((None, size, 0, work, arguments))
        meeting, _, _ = self._answer(ends[0])
        for rank, end in enumerate(ends[1:], start=1):
            end.send((meeting, size, rank, work, arguments))
        answers = [self._answer(end) for end in ends]  # of all, before any error is raised
        for _, error, trace in answers:
            if error is not None:
                error.add_note(trace)
                raise error
        return [value for value, _, _ in answers]

    def _answer(self, end: Connection) -> tuple[Any, Exception | None, str]:
        assert end.poll(PATIENCE_S), "a rank gave no answer"
        answer: tuple[Any, Exception | None, str] = end.recv()
        return answer

    def close(self) -> None:
        for end in self._ends:
            end.close()
        for process in self.processes:
            process.join(10)
            process.kill()


def _serve(end: Connection) -> None:
    use_threads(1)
    while True:
        try:
            meeting, size, rank, work, arguments = end.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            end.send((_play(end, meeting, size, rank, work, arguments), None, ""))
        except Exception as error:
            end.send((None, error, traceback.format_exc()))


def _play(
    end: Connection,
    meeting: Meeting | None,
    size: int,
    rank: int,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Any:
    store = None
    if meeting is None:
        store, meeting = open_store("127.0.0.1")
        end.send((meeting, None, ""))
    ranks = Ranks(meeting, rank=rank, size=size, device="cpu", timeout_s=30.0)
    try:
        return work(ranks, *arguments)
    finally:
        ranks.leave()
        del store
