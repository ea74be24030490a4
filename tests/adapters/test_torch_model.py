"""Loading models: what is refused, and that two roles may load at the same moment."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outlast.adapters.torch_model import (
    load_config,
    load_model,
    named_state,
    resolve_model_directory,
    stop_token_ids,
)
from outlast.errors import RecipeError


def test_a_directory_that_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"config\.json and .*safetensors"):
        resolve_model_directory(str(tmp_path))
    with pytest.raises(RecipeError, match="not a directory"):
        resolve_model_directory(str(tmp_path / "nothing"))
    with pytest.raises(RecipeError, match="builtin:huge"):
        resolve_model_directory("builtin:huge")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(RecipeError, match=r"config\.json is not usable"):
        load_config(resolve_model_directory(str(tmp_path)))


def test_missing_weights_are_refused_and_not_made_up(
    models: dict[str, Path], tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(models["untied"], tmp_path / "model"))
    state = load_file(directory / "model.safetensors")
    del state["lm_head.weight"]
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match=r"lm_head\.weight"):
        load_model(directory)


def test_engine_and_trainer_may_load_at_the_same_time(models: dict[str, Path]) -> None:
    """transformers patches torch while it loads; unguarded, this left weights on `meta`."""
    expected = named_state(load_model(models["llama"]))
    with ThreadPoolExecutor(4) as pool:
        for model in pool.map(load_model, [models["llama"]] * 12):
            state = named_state(model)
            assert state.keys() == expected.keys()
            assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_stop_ids_of_a_directory(models: dict[str, Path]) -> None:
    assert stop_token_ids(models["llama"]) == (1,)
