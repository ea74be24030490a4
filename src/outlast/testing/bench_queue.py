"""TransferQueue on a local Ray, as far as `bench_transfer_queue` needs it.

Both are optional and imported inside functions only. Every column is sent jagged: a dense one would
be saved with its whole batch in every row. Ends only the Ray that it started.
May import: `rows`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from outlast.rows import Row

NEEDED = ("transfer_queue", "ray", "tensordict")
CPUS = 4
"""Logical ones: the actors of the default set-up ask for three, and with fewer wait for ever."""
PARTITION = "bench"
COLUMNS = ("prompt_ids", "response_ids", "logprobs", "weight_versions", "loss_mask")


def missing() -> tuple[str, ...]:
    """What would have to be installed first."""
    return tuple(name for name in NEEDED if importlib.util.find_spec(name) is None)


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of our own, with a token nobody else knows."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        yield
    finally:
        ray.shutdown()


class Queue:
    """A fresh TransferQueue in the running Ray."""

    def __init__(self) -> None:
        import transfer_queue
        from omegaconf import OmegaConf

        self._queue: ModuleType = transfer_queue
        self._queue.init(OmegaConf.create({"controller": {"polling_mode": True}}))

    def put(self, rows: Sequence[Row]) -> None:
        """Store rows under their keys; a key that is there is overwritten."""
        from tensordict import TensorDict

        columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
        columns["reward"] = [np.array([row.reward], dtype=np.float32) for row in rows]
        fields = TensorDict(
            {name: _jagged(values) for name, values in columns.items()}, batch_size=len(rows)
        )
        keys = [str(row.key) for row in rows]
        self._queue.kv_batch_put(keys=keys, partition_id=PARTITION, fields=fields)

    def count(self) -> int:
        """Rows it lists."""
        return len(self._queue.kv_list(PARTITION)[PARTITION])

    def save(self, directory: Path) -> int:
        """Its native checkpoint; returns its bytes."""
        self._queue.save_checkpoint(directory)
        return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())

    def close(self) -> None:
        self._queue.close()


def _jagged(values: Sequence[np.ndarray]) -> object:
    import torch

    tensors = [torch.from_numpy(np.array(value)) for value in values]
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)
