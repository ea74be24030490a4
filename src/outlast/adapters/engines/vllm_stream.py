"""The tokens of one request on their way from vLLM's output to the reader of its stream.

May import: numpy, `errors`, `ports`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np

from outlast.errors import InfrastructureFailure
from outlast.model.ids import Incarnation
from outlast.ports import TokenChunk

Finish = Literal["stop", "length", "aborted"]


class Stream:
    """Collects what was decoded until it is read. One writer and one reader, on one loop."""

    def __init__(self, request_id: str, incarnation: Incarnation) -> None:
        self.request_id = request_id
        self.incarnation = incarnation
        self.name = ""
        """What vLLM calls the request; empty while it has not been given to vLLM."""
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._finish: Finish | None = None
        self._failure: InfrastructureFailure | None = None
        self._ready = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether nothing more will be accepted."""
        return self._finish is not None or self._failure is not None

    def add(self, ids: Sequence[int], logprobs: Sequence[float], *, version: int) -> None:
        """Append tokens, all decoded by `version`. Ignored after the end."""
        if self.ended:
            return
        self._ids += ids
        self._logprobs += logprobs
        self._versions += [version] * len(ids)
        self._ready.set()

    def finish(self, finish: Finish) -> None:
        """End the stream after the tokens it has."""
        if not self.ended:
            self._finish = finish
            self._ready.set()

    def fail(self, failure: InfrastructureFailure) -> None:
        """End the stream with an error, after the tokens it has."""
        if not self.ended:
            self._failure = failure
            self._ready.set()

    async def read(self) -> TokenChunk:
        """All tokens since the last call, at least one or the end. Raises what `fail` was given."""
        await self._ready.wait()
        if self._failure is not None and not self._ids:
            raise self._failure
        chunk = TokenChunk(
            ids=np.asarray(self._ids, dtype=np.int32),
            logprobs=np.asarray(self._logprobs, dtype=np.float32),
            versions=np.asarray(self._versions, dtype=np.int32),
            finish=self._finish,
        )
        self._ids, self._logprobs, self._versions = [], [], []
        if self._failure is None:
            self._ready.clear()
        return chunk
