"""What Outlast adds to vLLM's worker, in the worker's own process. May import: `vllm_weights`."""

from __future__ import annotations

from typing import Any

from outlast.adapters.engines.vllm_weights import Index, SharedState, opened


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
