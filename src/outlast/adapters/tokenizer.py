"""Tokenizers of Hugging Face model directories, loaded offline.

May import: transformers (when called), `errors`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outlast.errors import RecipeError


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer of `directory`. Raises RecipeError when there is none that loads."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise RecipeError(
            f"model.path: {directory} has no tokenizer that loads ({error}); required: "
            "tokenizer.json and tokenizer_config.json beside the model"
        ) from error
