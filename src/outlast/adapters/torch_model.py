"""Hugging Face causal language models from a local directory, offline, never by running its code.

Shared by the embedded engine and trainer: both must agree on names of parameters and on the
sampling distribution. May import: torch, transformers, `assets`, `errors`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.errors import InvariantError, RecipeError

State = Mapping[str, Tensor]
"""Parameters (tied ones once) and persistent buffers by Hugging Face name."""

BUILTIN = "builtin:"

TRANSFORMERS = threading.RLock()
"""Held while transformers builds anything. It patches torch for the whole process while it loads:
two loads at once, engine's and trainer's, have left weights on the meta device and ties undone."""


def resolve_model_directory(path: str) -> Path:
    """The directory of `model.path`: itself, or the one behind ``builtin:NAME``.

    Raises RecipeError naming the path and what is missing when no model can be loaded from it.
    """
    directory = _builtin(path) if path.startswith(BUILTIN) else Path(path).expanduser()
    if not directory.is_dir():
        raise RecipeError(
            f"model.path: {path!r} is not a directory (looked at {directory.absolute()}); "
            "required: a Hugging Face model directory, builtin:tiny or builtin:smollm2-135m"
        )
    missing = [] if (directory / "config.json").is_file() else ["config.json"]
    if not any(directory.glob("*.safetensors")):
        missing.append("*.safetensors (pickled *.bin weights are not read)")
    if missing:
        raise RecipeError(
            f"model.path: {directory} is not a model directory: {' and '.join(missing)} missing; "
            "save the model there with save_pretrained()"
        )
    return directory


def _builtin(path: str) -> Path:
    name = path.removeprefix(BUILTIN)
    if name == "tiny":
        return Path(str(resources.files("outlast.assets"))) / "tiny"
    if name == "smollm2-135m":
        from outlast.assets import smollm2

        return smollm2.ensure_smollm2()
    raise RecipeError(
        f"model.path: {path!r} is unknown; required: builtin:tiny or "
        "builtin:smollm2-135m, or a directory"
    )


def load_config(directory: Path) -> Any:
    """The transformers config of a model directory. Raises RecipeError when it is not readable."""
    # A local directory needs no hub; this also keeps transformers from probing for one.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        with TRANSFORMERS:
            from transformers import AutoConfig

            return AutoConfig.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise RecipeError(f"model.path: {directory}/config.json is not usable: {error}") from error


def load_model(directory: Path) -> torch.nn.Module:
    """The model of `directory` in float32 on the CPU, in eval mode (no dropout anywhere).

    The sampler has no dropout, so the trainer has none either: their logprobs must agree.
    Raises RecipeError when it cannot be loaded or when weights are missing from its files.
    """
    config = load_config(directory)
    try:
        with TRANSFORMERS:
            model, report = _from_pretrained(directory, config)
    except (OSError, ValueError, ImportError) as error:
        raise RecipeError(f"model.path: {directory} cannot be loaded: {error}") from error
    absent = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if absent:
        raise RecipeError(
            f"model.path: {directory} is incomplete: no usable weights for {', '.join(absent[:3])}"
            f"{' ...' if len(absent) > 3 else ''}; save the whole model with save_pretrained()"
        )
    return model.eval()


def _from_pretrained(directory: Path, config: Any) -> tuple[torch.nn.Module, Any]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    auto: Any = AutoModelForCausalLM  # its types do not know `output_loading_info`
    loaded: tuple[torch.nn.Module, Any] = auto.from_pretrained(
        directory,
        config=config,
        local_files_only=True,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation="sdpa",
        output_loading_info=True,
    )
    return loaded


def empty_model(config: Any, *, dtype: torch.dtype) -> torch.nn.Module:
    """A model of `config` whose weights are still to be loaded."""
    with TRANSFORMERS:
        from transformers import AutoModelForCausalLM

        model: torch.nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    return model.eval()


def named_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """The live parameters and persistent buffers of `model`, tied tensors under one name only."""
    persistent = model.state_dict(keep_vars=True)
    state: dict[str, Tensor] = dict(model.named_parameters())
    state |= {name: value for name, value in model.named_buffers() if name in persistent}
    return state


def check_state(state: State, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse a state that is not exactly `shapes`. Raises InvariantError naming the differences."""
    faults = [f"{name} missing" for name in sorted(shapes.keys() - state.keys())]
    faults += [f"{name} unknown" for name in sorted(state.keys() - shapes.keys())]
    faults += [
        f"{name} is {list(state[name].shape)}, required {list(shape)}"
        for name, shape in sorted(shapes.items())
        if name in state and tuple(state[name].shape) != shape
    ]
    if faults:
        raise InvariantError(
            f"weights refused, they belong to another model: {'; '.join(faults[:5])}"
            + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        )


def copy_state(source: State, target: Mapping[str, Tensor]) -> None:
    """Copy `source` into the live tensors `target`, converting dtype and device."""
    check_state(source, {name: tuple(value.shape) for name, value in target.items()})
    with torch.no_grad():
        for name, value in target.items():
            value.copy_(source[name])


def stop_token_ids(directory: Path) -> tuple[int, ...]:
    """End-of-sequence ids a model directory declares: generation_config.json, then config.json.

    For whoever builds `SamplingParams`: the engine itself stops only at the ids of a request.
    """
    for name in ("generation_config.json", "config.json"):
        path = directory / name
        if path.is_file():
            value = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if value is not None:
                return tuple(_ints(value))
    return ()


def _ints(value: int | list[int]) -> Iterator[int]:
    yield from [value] if isinstance(value, int) else value
