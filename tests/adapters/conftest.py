"""Model directories that are made once per session, by name: ``llama``, ``untied``, ``gpt2``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adapters.models import save_gpt2, save_llama
from tests.adapters.sharded_ranks import RankPool


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "llama": save_llama(root / "llama"),
        "untied": save_llama(root / "untied", tied=False, seed=1),
        "gpt2": save_gpt2(root / "gpt2"),
    }


@pytest.fixture(scope="session")
def pool() -> Iterator[RankPool]:
    """Three processes that play ranks of a sharded trainer."""
    pool = RankPool(3)
    yield pool
    pool.close()
