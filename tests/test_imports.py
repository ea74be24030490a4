"""Importing the package, or the parts that must run without torch, loads nothing heavy.

Each import happens in a fresh interpreter, so that other tests cannot hide a violation.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "ray", "vllm")
WITHOUT_TORCH = (
    "outlast",
    "outlast.errors",
    "outlast.config",
    "outlast.world",
    "outlast.model",
    "outlast.ports",
    "outlast.telemetry",
    "outlast.durable",
    "outlast.runtime",
    "outlast.cli.main",
    "outlast.__main__",
)


def loaded_by(statement: str) -> set[str]:
    """Heavy packages in `sys.modules` after running the statement in a new interpreter."""
    code = f"{statement}\nimport sys\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def exists(name: str) -> bool:
    """Whether the module can be found, without importing it."""
    parent = name.rpartition(".")[0]
    if parent and not exists(parent):
        return False
    return importlib.util.find_spec(name) is not None


def submodules(name: str) -> list[str]:
    """The package and every module below it (a lazy `__init__` must not hide a heavy submodule)."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations is None:
        return [name]
    places = map(Path, spec.submodule_search_locations)
    stems = sorted(path.stem for place in places for path in place.glob("*.py"))
    return [name, *(f"{name}.{stem}" for stem in stems if stem != "__init__")]


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_import_loads_nothing_heavy(name: str) -> None:
    if not exists(name):
        pytest.skip(f"{name} does not exist yet")
    assert loaded_by(f"import {name}") == set()


@pytest.mark.parametrize("name", ["outlast.model", "outlast.durable", "outlast.runtime"])
def test_every_submodule_loads_nothing_heavy(name: str) -> None:
    if not exists(name):
        pytest.skip(f"{name} does not exist yet")
    assert loaded_by("\n".join(f"import {sub}" for sub in submodules(name))) == set()


def test_the_check_itself_sees_torch() -> None:
    assert "torch" in loaded_by("import torch")


def test_version() -> None:
    import outlast

    assert outlast.__version__ == "0.1.0"
