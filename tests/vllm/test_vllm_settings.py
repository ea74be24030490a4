"""What a recipe means to vLLM, and what is refused before it starts. Needs no vLLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.adapters.engines.vllm_settings import (
    OWNED,
    check_names,
    check_sampling,
    child_environment,
    engine_arguments,
    logprobs_mode,
)
from outlast.config.schema import GenerationSection
from outlast.errors import InvariantError, RecipeError
from outlast.ports import SamplingParams
from tests.vllm.models import request


def _generation(**fields: object) -> GenerationSection:
    return GenerationSection.model_validate({"engine": "vllm", **fields})


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "processed_logprobs"),
        ({"temperature": 0.7}, "processed_logprobs"),
        ({"temperature": 0}, "processed_logprobs"),
        ({"top_p": 0.9}, "raw_logprobs"),
        ({"top_k": 5, "temperature": 0}, "raw_logprobs"),
    ],
)
def test_the_mode_follows_from_what_is_sampled(fields: dict[str, object], mode: str) -> None:
    assert logprobs_mode(_generation(**fields)) == mode


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, "top_p 0.9"),
        ({"temperature": 1.3, "top_k": 5}, "top_k 5"),
        ({"temperature": 0.001}, "0.01"),
    ],
)
def test_sampling_without_the_ports_logprobs_is_refused(
    fields: dict[str, object], said: str
) -> None:
    with pytest.raises(RecipeError, match=said):
        logprobs_mode(_generation(**fields))


@pytest.mark.parametrize(
    ("sampling", "mode", "accepted"),
    [
        (SamplingParams(max_new_tokens=4, temperature=0.7), "processed_logprobs", True),
        (SamplingParams(max_new_tokens=4, top_p=0.9), "processed_logprobs", False),
        (SamplingParams(max_new_tokens=4, top_k=3), "processed_logprobs", False),
        (SamplingParams(max_new_tokens=4, top_p=0.9, temperature=0), "processed_logprobs", True),
        (SamplingParams(max_new_tokens=4, top_p=0.9, top_k=3), "raw_logprobs", True),
        (SamplingParams(max_new_tokens=4, temperature=0.7), "raw_logprobs", False),
        (SamplingParams(max_new_tokens=4, temperature=0), "raw_logprobs", True),
        (SamplingParams(max_new_tokens=4, temperature=0.001), "processed_logprobs", False),
    ],
)
def test_requests_outside_the_mode_are_refused(
    sampling: SamplingParams, mode: str, accepted: bool
) -> None:
    asked = request(sampling=sampling)
    if accepted:
        check_sampling(asked, mode)  # type: ignore[arg-type]
        return
    with pytest.raises(InvariantError, match="r0 refused"):
        check_sampling(asked, mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(OWNED))
def test_arguments_outlast_sets_cannot_be_given(name: str) -> None:
    with pytest.raises(RecipeError, match=f"generation.vllm.{name}"):
        engine_arguments(Path("m"), _generation(vllm={name: 1}), device="cpu")


def test_further_arguments_reach_vllm_and_win_over_defaults() -> None:
    further = {"enforce_eager": False, "max_model_len": 512}
    arguments = engine_arguments(Path("m"), _generation(vllm=further), device="cpu")
    assert (arguments["enforce_eager"], arguments["max_model_len"]) == (False, 512)
    assert (arguments["dtype"], arguments["max_num_seqs"]) == ("float32", 256)


def test_prompts_are_prefilled_whole_on_a_cpu() -> None:
    assert (
        engine_arguments(Path("m"), _generation(), device="cpu")["enable_chunked_prefill"] is False
    )
    assert "enable_chunked_prefill" not in engine_arguments(Path("m"), _generation(), device="cuda")
    asked = _generation(vllm={"enable_chunked_prefill": True})
    with pytest.raises(RecipeError, match="enable_chunked_prefill"):
        engine_arguments(Path("m"), asked, device="cpu")


def test_unknown_arguments_are_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean max_model_len"):
        check_names({"max_modle_len": 1}, frozenset({"max_model_len", "dtype"}))


def test_the_environment_of_the_children_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with child_environment(threads=2, device="cpu"):
        assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["OMP_NUM_THREADS"] == "7"
