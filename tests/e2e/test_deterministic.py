"""S11: the same weights bit for bit, however often the run was killed on its way to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from outlast.adapters.torch_model import resolve_model_directory
from outlast.adapters.trainers.torch_core import TrainerCore
from outlast.config.load import load_recipe
from outlast.model.ids import TrainerVersion
from outlast.testing.chaos import run_campaign
from outlast.testing.chaos_blows import Kind
from outlast.testing.chaos_verdict import Campaign
from tests.e2e.program import SMALL, outlast

STEPS = 40
KILLS = 10
DETERMINISTIC = (
    *SMALL,
    "deterministic=true",
    "checkpointing.save_period=10",
    "async_rl.sampler.name=in_order",
    "async_rl.sampler.lookahead=0",
    "async_rl.min_groups_for_streaming_train=4",
    f"algorithm.max_num_steps={STEPS}",
)


def _trainer_state(run_dir: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Digest of the final weights, and what a trainer checkpoint holds besides them.

    Without torch's process-wide random state: a model without dropout draws nothing from it while
    it trains, but whoever makes a module does, once per life.
    """
    recipe = load_recipe(None, DETERMINISTIC).recipe
    core = TrainerCore(
        directory=resolve_model_directory(recipe.model.path),
        algorithm=recipe.algorithm,
        training=recipe.training,
        temperature=recipe.generation.temperature,
        deterministic=True,
    )
    core.load(run_dir / f"step_{STEPS:06d}" / "trainer", TrainerVersion(STEPS))
    state = core.staged().items()
    return core.digest(), {name: value for name, value in state if not name.startswith("rng/")}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_s11_a_run_killed_between_trainer_checkpoints_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    """A trainer checkpoint every tenth step: what lies between is executed again from rows."""
    options = [part for override in DETERMINISTIC for part in ("--set", override)]
    twin = outlast("train", *options, "--run-dir", tmp_path / "twin")
    assert twin.returncode == 0, twin.stderr
    verdict = run_campaign(
        Campaign(
            kills=KILLS,
            seed=3,
            overrides=DETERMINISTIC,
            kinds=(Kind.TIMER, Kind.FAILPOINT),
            lineages_max=1,
            life_s=0.4,
            timeout_s=600,
        ),
        tmp_path,
    )
    assert verdict.violations == [] and verdict.finished == 1
    assert len(verdict.deaths) >= KILLS
    report = json.loads(outlast("audit", tmp_path / "lineage_1" / "run", "--json").stdout)
    assert report["ok"] and sum(life["replayed"] for life in report["incarnations"]) > 0
    undisturbed, expected = _trainer_state(tmp_path / "twin")
    killed, found = _trainer_state(tmp_path / "lineage_1" / "run")
    assert killed == undisturbed
    assert found.keys() == expected.keys() and any(n.startswith("optimizer/") for n in found)
    differing = [name for name in expected if not torch.equal(found[name], expected[name])]
    assert differing == []
