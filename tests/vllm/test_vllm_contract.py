"""vLLM passes the contract suite of the engine port."""

from __future__ import annotations

import numpy as np

from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.adapters.torch_model import load_model, named_state, resolve_model_directory
from outlast.config.schema import GenerationSection
from tests.contracts.engine_contract import EngineContract, EngineSubject

MODEL = "builtin:tiny"


class TestVllmEngine(EngineContract):
    def make(self) -> EngineSubject:
        state = named_state(load_model(resolve_model_directory(MODEL)))
        return EngineSubject(
            engine=VllmEngine(model_path=MODEL, generation=GenerationSection(max_batch_size=16)),
            payload=lambda version: {name: t * (1 + 0.1 * version) for name, t in state.items()},
            prompt=np.asarray([5, 9, 3, 2], dtype=np.int32),
            exact=False,
        )
