"""The actors of one TransferQueue: a controller and storage units that nobody else shares.

They are started from their classes rather than through TransferQueue's `init`, whose fixed names
allow one queue per cluster and which waits for ever where CPUs are short. They take no logical CPU,
and end with this process however it ends. The controller's name carries a generation, so that
readers elsewhere find the newest.
May import: transfer_queue, ray (when called), `planes.queue_client`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from outlast.adapters.planes.queue_client import QueueAddress, import_transfer_queue
from outlast.adapters.planes.queue_columns import QueueFault

NAMESPACE = "outlast"
START_TIMEOUT_S = 120.0
"""For processes to start and import: bounded apart from calls, which are short."""


class QueueCluster:
    """Started by its constructor, which blocks. Raises QueueFault."""

    def __init__(self, ray: Any, *, name: str, partition: str, units: int) -> None:
        import_transfer_queue()
        from transfer_queue.controller import TransferQueueController
        from transfer_queue.sampler import SequentialSampler
        from transfer_queue.storage.simple_storage import SimpleStorageUnit
        from transfer_queue.utils.common import get_node_round_robin_scheduling_strategies

        self._ray = ray
        self.actors: list[Any] = []
        """The controller, then the units in order."""
        try:
            self.actors.append(
                TransferQueueController.options(num_cpus=0, name=name, namespace=NAMESPACE).remote(
                    sampler=SequentialSampler(), polling_mode=True
                )
            )
            for place in get_node_round_robin_scheduling_strategies(units):
                self.actors.append(
                    SimpleStorageUnit.options(num_cpus=0, scheduling_strategy=place).remote(
                        config={"num_data_storage_units": units}
                    )
                )
            asked = [actor.get_zmq_server_info.remote() for actor in self.actors]
            controller, *listening = ray.get(asked, timeout=START_TIMEOUT_S)
        except (ray.exceptions.RayError, RuntimeError, ValueError) as error:
            self.close()
            raise QueueFault(f"its actors do not start: {error}") from error
        self.address = QueueAddress(controller, tuple(listening), partition)

    def announce(self) -> None:
        """Let readers elsewhere connect: all rows are there. Blocks. Raises QueueFault."""
        address = self.address
        config = {
            "controller": address.controller,
            "units": address.units,
            "partition": address.partition,
        }
        try:
            self._ray.get(self.actors[0].store_config.remote(config), timeout=START_TIMEOUT_S)
        except self._ray.exceptions.RayError as error:
            raise QueueFault(f"its controller is gone: {error}") from error

    async def death(self, *, timeout_s: float) -> str | None:
        """Who of the actors is dead, or silent for so long; None while all live."""
        parts = ["its controller", *(f"storage unit {n}" for n in range(len(self.actors) - 1))]
        asked = [
            asyncio.wrap_future(actor.get_zmq_server_info.remote().future())
            for actor in self.actors
        ]
        done, silent = await asyncio.wait(asked, timeout=timeout_s)
        for part, answer in zip(parts, asked, strict=True):
            if answer in silent:
                answer.cancel()
                return f"{part} is silent for {timeout_s} s"
            if answer in done and answer.exception() is not None:
                return f"{part} is dead"
        return None

    def close(self) -> None:
        """End the actors; what they held is gone."""
        for actor in self.actors:
            self._ray.kill(actor)
        self.actors = []


def find_address(ray: Any, *, prefix: str, timeout_s: float) -> tuple[str, QueueAddress]:
    """Name and address of the newest queue of `prefix`. Raises QueueFault while there is none."""
    name = newest_name(ray, prefix=prefix)
    if name is None:
        raise QueueFault("no TransferQueue of this run is announced")
    try:
        controller = ray.get_actor(name, namespace=NAMESPACE)
        found = ray.get(controller.get_config.remote(), timeout=timeout_s)
    except (ray.exceptions.RayError, ValueError) as error:
        raise QueueFault(f"{name} is not there: {error}") from error
    if found is None:
        raise QueueFault(f"{name} is still being filled")
    return name, QueueAddress(found["controller"], tuple(found["units"]), found["partition"])


def newest_name(ray: Any, *, prefix: str) -> str | None:
    """Name of the controller of the highest generation, which ends it in six digits or more."""
    actors: Sequence[Any] = ray.util.list_named_actors(all_namespaces=True)
    named = [actor["name"] for actor in actors if actor["namespace"] == NAMESPACE]
    ours = [name for name in named if name.startswith(prefix)]
    return max(ours, key=lambda name: int(name.removeprefix(prefix)), default=None)
