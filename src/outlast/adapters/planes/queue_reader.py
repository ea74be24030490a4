"""Rows for trainer ranks in other processes, straight from TransferQueue.

A reader travels by pickle and connects where it is first used. It finds the newest queue of its
plane by name, so it outlives a replaced one. Every row is checked as the plane checks it, but for
the digest: the row carries its own. May import: ray (when called), `planes.queue_*`.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Sequence
from typing import Any

from outlast.adapters.planes.queue_client import QueueClient
from outlast.adapters.planes.queue_cluster import find_address, newest_name
from outlast.adapters.planes.queue_columns import QueueFault
from outlast.errors import OutlastError
from outlast.model.ids import AttemptKey
from outlast.rows import Row

LOOK_S = 1.0
"""Between looks for a newer queue while one does not answer, and between tries to connect."""
PATIENCE = 3
"""Time-outs to wait for a queue that is being replaced, beside its start."""
START_S = 120.0


class QueueReader:
    """`fetch` blocks; call it inside a process that is connected to the same Ray cluster."""

    def __init__(self, *, prefix: str, timeout_s: float) -> None:
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._name = ""
        self._client: QueueClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_name": "", "_client": None}

    def fetch(self, keys: Sequence[AttemptKey]) -> list[Row]:
        """The rows of `keys`, in order. Raises OutlastError when no queue gives them in time."""
        until = time.monotonic() + START_S + PATIENCE * self._timeout_s
        while True:
            try:
                found = {row.key: row for row in self._ask(keys)}
                return [found[key] for key in keys]
            except QueueFault as fault:
                self.close()
                if time.monotonic() > until:
                    raise OutlastError(
                        f"{len(keys)} rows could not be fetched from TransferQueue: {fault}. "
                        "Run the same command again; look at the cluster if it comes back"
                    ) from fault
            time.sleep(LOOK_S)

    def _ask(self, keys: Sequence[AttemptKey]) -> list[Row]:
        import ray

        if self._client is None:
            self._name, address = find_address(ray, prefix=self._prefix, timeout_s=self._timeout_s)
            self._client = QueueClient(address, timeout_s=self._timeout_s)
        asked = self._client.get(dict.fromkeys(keys))
        while True:
            try:
                return asked.result(timeout=LOOK_S)
            except concurrent.futures.TimeoutError:
                if newest_name(ray, prefix=self._prefix) != self._name:
                    raise QueueFault(f"{self._name} was replaced") from None

    def close(self) -> None:
        """Give the connection back; the next `fetch` makes another."""
        if self._client is not None:
            self._client.close()
            self._client = None
