"""A policy as a Hugging Face model directory: weights, config and tokenizer.

May import: torch, transformers, `ports`, its siblings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outlast.adapters.tokenizer import load_tokenizer
from outlast.adapters.torch_model import TRANSFORMERS, copy_state, load_model, named_state
from outlast.errors import InvariantError
from outlast.ports import Weights


def save_model(weights: Weights, *, source: Path, to: Path) -> int:
    """Save `weights` over the architecture and tokenizer of `source` into `to`, in float32.

    Returns the number of parameters. Raises RecipeError when `source` does not load, InvariantError
    when the weights belong to another model.
    """
    if not isinstance(weights.payload, Mapping):
        raise InvariantError(
            f"export: weights {weights.version} are a {type(weights.payload).__name__}, required a "
            "mapping of parameter names to tensors"
        )
    model: Any = load_model(source)
    copy_state(weights.payload, named_state(model))
    with TRANSFORMERS:
        model.save_pretrained(to, safe_serialization=True)
        load_tokenizer(source).save_pretrained(to)
    return sum(parameter.numel() for parameter in model.parameters())
