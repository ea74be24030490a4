"""What a recipe means to vLLM: arguments, environment, which log-probabilities, refusals.

Everything here is decided before vLLM is imported. May import: `config`, `errors`, `ports`.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from outlast.config.schema import GenerationSection
from outlast.errors import InvariantError, RecipeError
from outlast.ports import GenerationRequest

WORKER_EXTENSION = "outlast.adapters.engines.vllm_worker.OutlastWorker"

THREADS = "OMP_NUM_THREADS"
OWNED = {
    "model": "model.path",
    "tokenizer": "model.path",
    "dtype": "generation.dtype",
    "max_num_seqs": "generation.max_batch_size",
    "seed": "seed",
    "logprobs_mode": "what generation.temperature, top_p and top_k ask for",
    "worker_extension_cls": "how weights are loaded",
    "skip_tokenizer_init": "token ids in, token ids out",
    "generation_config": "generation.temperature, top_p and top_k",
    "override_generation_config": "generation.temperature, top_p and top_k",
    "load_format": "model.path",
    "stream_interval": "every token is streamed",
    "speculative_config": "one weight version per token",
    "shutdown_timeout": "the controller's own shutdown",
    "data_parallel_size": "generation.num_engines",
}
"""Arguments of vLLM that Outlast sets, each with what decides it."""

Mode = Literal["processed_logprobs", "raw_logprobs"]
TEMPERATURE_MIN = 0.01  # vLLM raises smaller ones to this, which would falsify the logprobs
CPU_KV_CACHE_GIB = 1


def logprobs_mode(generation: GenerationSection) -> Mode:
    """The mode in which vLLM reports what the port asks for. Raises RecipeError.

    `processed_logprobs` are those after temperature, top-k and top-p: the port's as long as nothing
    is cut. `raw_logprobs` are those before all three: the port's at temperature 1 and when greedy.
    """
    temperature, cut = generation.temperature, generation.top_p < 1 or generation.top_k > 0
    if 0 < temperature < TEMPERATURE_MIN:
        raise RecipeError(
            f"generation.temperature: vLLM samples {temperature} as {TEMPERATURE_MIN}; required: "
            f"0 (greedy) or >= {TEMPERATURE_MIN}"
        )
    if cut and temperature not in (0, 1):
        raise RecipeError(
            f"generation: found top_p {generation.top_p}, top_k {generation.top_k} at temperature "
            f"{temperature} with engine vllm, which reports no logprobs that are scaled but not "
            "cut, and the loss needs them; required: temperature 1, or top_p 1 and top_k 0, or "
            "generation.engine: torch"
        )
    return "raw_logprobs" if cut else "processed_logprobs"


def check_sampling(request: GenerationRequest, mode: Mode) -> None:
    """Refuse a request whose log-probabilities would be others than the port's."""
    sampling = request.sampling
    temperature = sampling.temperature
    if temperature == 0:
        return
    scaled, cut = temperature != 1, sampling.top_p < 1 or sampling.top_k > 0
    if temperature < TEMPERATURE_MIN or (scaled if mode == "raw_logprobs" else cut):
        raise InvariantError(
            f"request {request.id} refused: temperature {temperature}, top_p {sampling.top_p}, "
            f"top_k {sampling.top_k}; this vLLM engine was started for {mode} (see docs/vllm.md); "
            "required: the sampling of the recipe's section generation, or greedy"
        )


def engine_arguments(
    directory: Path, generation: GenerationSection, *, device: str
) -> dict[str, object]:
    """Keyword arguments of `AsyncEngineArgs`. Raises RecipeError for those Outlast owns."""
    for name in generation.vllm:
        if name in OWNED:
            raise RecipeError(
                f"generation.vllm.{name}: Outlast sets this itself, from {OWNED[name]}; "
                "required: leave it out"
            )
    arguments: dict[str, object] = {
        "model": str(directory),
        "dtype": generation.dtype,
        "max_num_seqs": generation.max_batch_size,
        "seed": 0,
        "logprobs_mode": logprobs_mode(generation),
        "worker_extension_cls": WORKER_EXTENSION,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "load_format": "safetensors",
        "disable_log_stats": True,
    }
    if device == "cpu":
        if generation.vllm.get("enable_chunked_prefill"):
            raise RecipeError(
                "generation.vllm.enable_chunked_prefill: on a CPU vLLM's worker dies of a prompt "
                "in parts whose request has a seed (its generator has no offset to set back); "
                "required: leave it out"
            )
        arguments |= {"enforce_eager": True, "enable_chunked_prefill": False}
    return arguments | generation.vllm


def check_names(arguments: Mapping[str, object], known: frozenset[str]) -> None:
    """Refuse arguments that this vLLM does not have. Raises RecipeError with the nearest one."""
    for name in arguments:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RecipeError(f"generation.vllm.{name}: vLLM's engine has no such argument{hint}")


def require_vllm() -> None:
    """Raises RecipeError when vLLM is not installed. Does not import it."""
    if importlib.util.find_spec("vllm") is None:
        raise RecipeError(
            "generation.engine: vllm is not installed; required: pip install 'outlast[vllm]' (GPU) "
            "or the list in docs/vllm.md (CPU), or generation.engine: torch"
        )


def prepare_environment(*, device: str) -> None:
    """Variables vLLM reads when it is imported; what the user has set stands."""
    for name, value in {
        "HF_HUB_OFFLINE": "1",  # the model is a local directory
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # A fork of a process with threads (engine, trainer, writer) may inherit a held lock.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }.items():
        os.environ.setdefault(name, value)
    if device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(CPU_KV_CACHE_GIB))
        # Pinning is by position: two engines of one machine would share the same core.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


@contextmanager
def child_environment(*, threads: int, device: str) -> Iterator[None]:
    """While vLLM starts its processes: how many threads of a CPU they take."""
    before = os.environ.get(THREADS)
    if device == "cpu":
        os.environ[THREADS] = str(threads)
    try:
        yield
    finally:
        os.environ.pop(THREADS, None)
        if before is not None:
            os.environ[THREADS] = before
