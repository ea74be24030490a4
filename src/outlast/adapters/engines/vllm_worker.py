"""What Outlast adds to vLLM's worker, in the worker's own process.

vLLM imports this module before it loads the model. From then on the processes of the engine live
no longer than the one that started them, however that one ends. May import: torch, `vllm_weights`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

from outlast.adapters.engines.vllm_settings import OWNER
from outlast.adapters.engines.vllm_weights import Index, SharedState, opened

POLL_S = 0.5


class OutlastWorker:
    """Mixed into vLLM's worker class; called by `collective_rpc`."""

    model_runner: Any

    def outlast_load(self, path: str, index: Index) -> int:
        """Load every tensor of `index` in place; returns how many there were."""
        source = SharedState(path, {name: (d, list(s), o) for name, (d, s, o) in index.items()})
        with opened(source) as tensors:
            # Not model.load_weights: on a CPU the layers hold repacked copies of their weights.
            self.model_runner.reload_weights(weights_iterator=tensors)
        _repack_tied(self.model_runner.get_model())
        return len(index)


def _repack_tied(model: Any) -> None:
    """Make layers that borrow the weight of another one compute with what was loaded into it.

    A reload skips them, since no tensor bears their name; on a CPU they multiply with a packed
    copy, which would stay that of the old weights (an output head tied to the embedding).
    """
    owners: set[int] = set()
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if weight is None:
            continue
        if id(weight) in owners and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)
        owners.add(id(weight))


def _watch(owner: int) -> None:
    """End this process and vLLM's core above it once `owner` is gone."""
    while _alive(owner):
        time.sleep(POLL_S)
    core = multiprocessing.parent_process()
    if core is not None and core.pid != owner and core.pid == os.getppid():
        os.kill(core.pid, signal.SIGKILL)
    os._exit(1)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Dead, but not yet collected by its own parent."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False


def _start() -> None:
    owner = os.environ.get(OWNER, "")
    if owner.isdigit() and int(owner) != os.getpid():
        threading.Thread(
            target=_watch, args=(int(owner),), name="outlast-owner", daemon=True
        ).start()


_start()
