"""vLLM passes the contract suite of the engine port."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.adapters.engines.vllm_engine import VllmEngine
from outlast.config.schema import GenerationSection
from tests.contracts.engine_contract import EngineContract, EngineSubject
from tests.vllm.models import NEEDS_VLLM, PROMPT, initial_state, save_long_tiny, scaled

pytestmark = NEEDS_VLLM


class TestVllmEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _model(self, tmp_path: Path) -> None:
        self.directory = save_long_tiny(tmp_path / "model")

    def make(self) -> EngineSubject:
        state = initial_state(self.directory)
        return EngineSubject(
            engine=VllmEngine(
                model_path=str(self.directory), generation=GenerationSection(max_batch_size=16)
            ),
            payload=lambda version: scaled(state, version).payload,
            prompt=PROMPT,
            exact=False,
        )
