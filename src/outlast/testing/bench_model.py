"""The built-in model without an end: every response takes its whole budget.

For benchmarks of what a kill costs: responses of one known length, long enough to be cut in two.
It is the tiny model with no end-of-sequence token and more positions; the weights are the same.
May import: `adapters` (where the built-in model lies).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from outlast.adapters.torch_model import resolve_model_directory

POSITIONS = 4_096
_ENDS = ("eos_token", "eos_token_id")


def endless_model(directory: Path) -> Path:
    """Write it to `directory`, which must not exist; returns the value of `model.path`."""
    shutil.copytree(resolve_model_directory("builtin:tiny"), directory)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        _edit(directory / name)
    return directory


def _edit(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    for key in _ENDS:
        content.pop(key, None)
    for key in ("max_position_embeddings", "model_max_length"):
        if key in content:
            content[key] = POSITIONS
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
