"""The torch adapters pass the contract suites of their ports, whatever the architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outlast.adapters.engines.torch_engine import TorchEngine
from outlast.adapters.torch_model import load_model, named_state
from outlast.adapters.trainers.torch_trainer import TorchTrainer
from outlast.config.schema import AlgorithmSection, GenerationSection, TrainingSection
from tests.adapters.models import DictPlane, payload_digest, random_groups
from tests.contracts.engine_contract import EngineContract, EngineSubject
from tests.contracts.trainer_contract import TrainerContract, TrainerSubject


@pytest.mark.parametrize(
    ("model", "deterministic", "generic"),
    [
        ("llama", True, False),
        ("llama", False, False),
        ("untied", False, False),
        ("llama", False, True),
        ("gpt2", True, False),
    ],
    scope="class",
)
class TestTorchEngine(EngineContract):
    @pytest.fixture(autouse=True)
    def _parameters(
        self, models: dict[str, Path], model: str, deterministic: bool, generic: bool
    ) -> None:
        self.directory = models[model]
        self.deterministic = deterministic
        self.generic = generic
        self.exact = deterministic or generic

    def make(self) -> EngineSubject:
        engine = TorchEngine(
            model_path=str(self.directory),
            generation=GenerationSection(max_batch_size=16),
            deterministic=self.deterministic,
            generic=self.generic,
        )
        state = named_state(load_model(self.directory))
        return EngineSubject(
            engine=engine,
            payload=lambda version: {name: t * (1 + 0.1 * version) for name, t in state.items()},
            prompt=np.asarray([5, 9, 33, 2], dtype=np.int32),
            exact=self.exact,
        )


@pytest.mark.parametrize("model", ["llama", "gpt2"], scope="class")
@pytest.mark.parametrize("deterministic", [True, False], scope="class")
class TestTorchTrainer(TrainerContract):
    @pytest.fixture(autouse=True)
    def _parameters(self, models: dict[str, Path], model: str, deterministic: bool) -> None:
        self.directory = models[model]
        self.deterministic = deterministic

    def make(self) -> TrainerSubject:
        plane = DictPlane()

        def trainer() -> TorchTrainer:
            return TorchTrainer(
                model_path=str(self.directory),
                algorithm=AlgorithmSection(),
                training=TrainingSection(
                    micro_batch_size=3,
                    warmup_steps=2,
                    schedule="cosine",
                    schedule_steps=10,
                    learning_rate=1e-3,
                ),
                plane=plane,  # type: ignore[arg-type]  # trainers only read
                temperature=0.8,
                deterministic=self.deterministic,
            )

        return TrainerSubject(
            make=trainer,
            groups=lambda step: random_groups(plane, step),
            silent_groups=lambda step: random_groups(plane, step, silent=True),
            fingerprint=payload_digest,
        )
