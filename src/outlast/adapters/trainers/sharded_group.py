"""How the ranks of a sharded trainer find each other and agree: process groups and small objects.

Three groups, so that nothing waits for something else: tensors (gloo on CPU, NCCL on GPU), control
(gloo: flags and sums of the training thread), checkpoint (gloo: the writer thread, beside
training). What is exchanged as objects comes from ranks of the same run on a trusted network.
May import: torch, `errors`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks meet: a TCP store that rank 0 keeps."""

    host: str
    port: int


def open_store(host: str) -> tuple[TCPStore, Meeting]:
    """For rank 0: a store on a free port of `host`, an address of this machine."""
    listener = socket.create_server((host, 0))
    port = listener.getsockname()[1]
    # The store takes over the socket that has the port: nobody can take it in between.
    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    return store, Meeting(host, port)


class Ranks:
    """This process as one of `size` ranks. One instance per process, until `leave`."""

    def __init__(
        self, meeting: Meeting, *, rank: int, size: int, device: str, timeout_s: float
    ) -> None:
        """Blocks until all ranks have come, at most `timeout_s`."""
        self.rank = rank
        self.size = size
        limit = timedelta(seconds=timeout_s)
        cuda = torch.device(device).type == "cuda"
        if cuda:
            torch.cuda.set_device(0)  # Ray shows each rank the one device that is its own
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            store=TCPStore(meeting.host, meeting.port, timeout=limit),
            rank=rank,
            world_size=size,
            timeout=limit,
        )
        self.mesh: DeviceMesh = init_device_mesh("cuda" if cuda else "cpu", (size,))
        self.cpu_mesh: DeviceMesh = init_device_mesh("cpu", (size,)) if cuda else self.mesh
        self._control = dist.new_group(backend="gloo", timeout=limit)
        self.checkpoint: Any = dist.new_group(backend="gloo", timeout=limit)

    def gathered(self, value: R) -> list[R]:
        """`value` of every rank, in order of ranks. Collective, on the training thread."""
        return gathered(value, group=self._control, size=self.size)

    def agreed(self, work: Callable[[], None]) -> None:
        """Do `work` on every rank, or raise on all what failed on any. On the training thread."""
        agreed(work, group=self._control, size=self.size)

    def any(self, flag: bool) -> bool:
        """Whether `flag` is set on some rank. Collective, on the training thread."""
        found = torch.tensor([flag], dtype=torch.int32)
        dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self._control)
        return bool(found.item())

    def leave(self) -> None:
        """End all groups of this process."""
        dist.destroy_process_group()


def gathered(value: R, *, group: Any, size: int) -> list[R]:
    """`value` of every rank of `group`, in order of ranks. Collective."""
    values: list[Any] = [None] * size
    dist.all_gather_object(values, value, group=group)
    return values


def agreed(work: Callable[[], R], *, group: Any, size: int) -> list[R]:
    """The results of `work` on every rank, or on all ranks the first error of any. Collective.

    A rank that fails alone would leave the others waiting in their next collective.
    """
    result: R | None = None
    failed: Exception | None = None
    try:
        result = work()
    except Exception as error:  # boundary: what one rank meets, every rank raises
        failed = error
    outcomes = gathered((result, failed), group=group, size=size)
    for _, failure in outcomes:
        if failure is not None:
            raise failure if failed is None else failed
    return [value for value, _ in outcomes]  # type: ignore[misc]
