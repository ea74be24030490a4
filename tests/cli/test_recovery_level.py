"""The recovery level that applies: by dataset, by environment, else the default; and it is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlast.adapters.prompts.build import build_prompts
from outlast.cli.wiring import Launch, run_settings
from outlast.config.load import parse_recipe
from outlast.durable.fingerprint import Identities
from outlast.model.groups import PromptRef, RecoveryLevel

IDENTITIES = Identities(model="m", tokenizer="t", dataset="d", environment="e")
DEFAULT = "rollout_recovery.default_level"
OVERRIDE = "rollout_recovery.overrides"


@pytest.mark.parametrize(
    ("overrides", "level"),
    [
        ((), "token"),
        ((f"{DEFAULT}=prompt_group",), "prompt_group"),
        ((f"{DEFAULT}=prompt_group", f"{OVERRIDE}.single_turn=sibling"), "sibling"),
        ((f"{OVERRIDE}.single_turn=sibling", f"{OVERRIDE}.tiny=prompt_group"), "prompt_group"),
        ((f"{OVERRIDE}.tiny=sibling", "dataset.name=sums"), "token"),
        ((f"{OVERRIDE}.sums=sibling", "dataset.name=sums"), "sibling"),
    ],
)
def test_the_level_that_applies(overrides: tuple[str, ...], level: str) -> None:
    loaded = parse_recipe("", overrides, source="test")
    launch = Launch(run_dir=Path("run"), fresh=False, take_over=False)
    prompts = build_prompts(parse_recipe("", source="test").recipe.dataset)
    settings = run_settings(loaded, launch, prompts=prompts, identities=IDENTITIES)
    prompt = PromptRef(dataset="d", epoch=0, index=0)
    assert settings.plan.level(prompt) is RecoveryLevel(level)
    assert f"recovery level {level}" in settings.description
