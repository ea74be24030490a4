"""A run directory made once by the real durable code, and fresh copies of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from outlast.__main__ import app
from tests.durable.lives import typical


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "run"
    path.mkdir()
    typical(path)
    return path


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    """A private copy, as `cp -r` would make it."""
    return Path(shutil.copytree(original, tmp_path / "run"))


@pytest.fixture
def outlast() -> Iterator[Callable[..., Result]]:
    runner = CliRunner()

    def invoke(*args: object) -> Result:
        return runner.invoke(app, [str(arg) for arg in args])

    yield invoke
