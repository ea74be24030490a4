"""What the tests of the vLLM engine share: whether vLLM is here, a model, payloads, requests."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from outlast.adapters.torch_model import load_model, named_state, resolve_model_directory
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion
from outlast.ports import GenerationRequest, SamplingParams, Weights

NEEDS_VLLM = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: run `make vllm`"
    ),
]
PROMPT = np.asarray([5, 9, 3, 2], dtype=np.int32)
LIFE = Incarnation(1)


def save_long_tiny(directory: Path) -> Path:
    """`builtin:tiny` with a context of 2,048 tokens; its weights do not depend on the length."""
    shutil.copytree(resolve_model_directory("builtin:tiny"), directory)
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {"max_position_embeddings": 2048}), encoding="utf-8")
    return directory


def initial_state(directory: Path) -> Mapping[str, Tensor]:
    """The parameters of a model directory under the names of the trainer."""
    return named_state(load_model(directory))


def scaled(state: Mapping[str, Tensor], version: int) -> Weights:
    """Weights that differ with their version, of the first incarnation."""
    payload = {name: tensor * (1 + 0.1 * version) for name, tensor in state.items()}
    return Weights(version=WeightVersion(LIFE, TrainerVersion(version)), payload=payload)


def request(
    name: str = "r0", *, tokens: int = 12, seed: int = 7, sampling: SamplingParams | None = None
) -> GenerationRequest:
    """A request of the first incarnation for the tiny model."""
    return GenerationRequest(
        id=name,
        incarnation=LIFE,
        prompt_ids=PROMPT,
        sampling=sampling or SamplingParams(max_new_tokens=tokens),
        seed=seed,
    )
