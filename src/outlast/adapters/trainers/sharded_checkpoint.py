"""Trainer state on disk, written by all ranks at once: torch DCP, every rank its own file.

The form is that of `torch_checkpoint`, which also reads it: names, shapes and dtypes of whole
tensors, whatever the number of ranks. A rank whose disk fails fails all ranks, and none waits for
it. Files are synced, directories are not. May import: torch, `torch_checkpoint`, `sharded_group`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter

from outlast.adapters.trainers.sharded_group import agreed
from outlast.adapters.trainers.torch_checkpoint import disk_errors, held


def write_shards(directory: Path, tensors: Mapping[str, Tensor], *, group: Any) -> None:
    """Write `tensors` (DTensors and, on rank 0, plain ones; on the CPU). Collective over `group`.

    Raises DiskFull or DiskError on every rank; what was written is then worthless and not removed.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    writer = FileSystemWriter(directory, thread_count=1, sync_files=True)
    planner = DefaultSavePlanner()
    first = rank == 0

    def plan_mine() -> Any:
        with disk_errors(directory):
            writer.reset(writer.path)
            state: dict[str, Any] = {n: t for n, t in tensors.items() if held(t).numel()}
            planner.set_up_planner(state, writer.storage_meta(), is_coordinator=first)
            writer.set_up_storage_writer(is_coordinator=first)
            return writer.prepare_local_plan(planner.create_local_plan())

    plans, metadata = planner.create_global_plan(agreed(plan_mine, group=group, size=size))

    def write_mine() -> Any:
        with disk_errors(directory):
            plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
            results = writer.write_data(plan, planner)
            results.wait()
            return results.value()

    results = agreed(write_mine, group=group, size=size)

    def write_index() -> None:
        if first:
            with disk_errors(directory):
                writer.finish(metadata, results)

    agreed(write_index, group=group, size=size)
