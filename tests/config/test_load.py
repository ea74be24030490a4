"""The loader: merge order, interpolation, secrets, and the words in which it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from outlast.config.load import load_recipe, parse_recipe, recipe_path
from outlast.errors import RecipeError


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, overrides, source="test")
    return str(caught.value)


def test_the_file_overrides_defaults_and_set_overrides_the_file() -> None:
    text = "seed: 3\ntraining: {learning_rate: 2e-4, beta1: 0.5}\nvalidation:\n  size: ${seed}"
    recipe = parse_recipe(text, ["training.beta1=0.7", "dataset.args.n=4"], source="test").recipe
    assert (recipe.seed, recipe.training.learning_rate, recipe.training.beta1) == (3, 2e-4, 0.7)
    assert (recipe.training.beta2, recipe.validation.size) == (0.95, 3)
    assert recipe.dataset.args == {"n": 4}


def test_set_reads_yaml_scalars() -> None:
    values = ["rollout_checkpointing.snapshot_attempt_interval_s=null", "telemetry.console=false"]
    recipe = parse_recipe("", [*values, "training.learning_rate=1e-4"], source="test").recipe
    assert recipe.rollout_checkpointing.snapshot_attempt_interval_s is None
    assert recipe.telemetry.console is False
    assert recipe.training.learning_rate == 1e-4


def test_an_interpolation_may_name_a_default() -> None:
    recipe = parse_recipe("dataset:\n  seed: ${algorithm.num_prompts_per_step}", source="t").recipe
    assert recipe.dataset.seed == 32


def test_no_recipe_is_the_built_in_demo_and_the_clone_holds_the_same_file() -> None:
    built_in = load_recipe(None)
    assert built_in.recipe.model.path == "builtin:tiny"
    clone = Path(__file__).resolve().parents[2] / "recipes" / "tiny.yaml"
    assert clone.read_bytes() == recipe_path(None).read_bytes()
    assert load_recipe(str(clone)) == built_in


@pytest.mark.parametrize("name", ["tiny", "tiny.yaml", "recipes/tiny.yaml"])
def test_a_packaged_recipe_is_found_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe(name) == load_recipe(None)


@pytest.mark.parametrize("name", ["nope.yaml", "elsewhere/tiny.yaml", "tiny.json"])
def test_a_recipe_that_is_nowhere_is_refused_with_the_shipped_ones(name: str) -> None:
    with pytest.raises(RecipeError, match=r"no such file.*tiny"):
        load_recipe(name)


def test_an_unreadable_file_is_a_bad_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(path)


def test_what_is_saved_resolves_no_environment_and_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HUSH", "s3cret")
    text = """
dataset:
  args: {api_key: literal-secret, hf_token: "${oc.env:HUSH}", n: 3}
rollout_recovery: {default_granularity: prompt_group}
rollout_checkpointing: {extra_fingerprint_excluded_paths: ["dataset.args.${oc.env:HUSH}"]}
"""
    loaded = parse_recipe(text, source="test")
    assert loaded.recipe.dataset.args["hf_token"] == "s3cret"
    saved = loaded.unresolved_yaml
    assert "s3cret" not in saved and "literal-secret" not in saved
    tree = yaml.safe_load(saved)
    assert tree["dataset"]["args"] == {"api_key": "???", "hf_token": "${oc.env:HUSH}", "n": 3}
    assert tree["rollout_recovery"]["default_level"] == "prompt_group"
    assert tree["algorithm"]["num_prompts_per_step"] == 32


def test_what_is_saved_loads_to_the_same_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE", "/data/x")
    loaded = parse_recipe("model:\n  path: ${oc.env:SOURCE}\nseed: 4", source="test")
    again = parse_recipe(loaded.unresolved_yaml, source="saved")
    assert again == loaded
    assert again.recipe.model.path == "/data/x"


def test_a_withheld_secret_must_be_given_again() -> None:
    saved = parse_recipe("dataset: {args: {api_key: x}}", source="test").unresolved_yaml
    assert "dataset.args.api_key: found ???, a value is required" in refusal(saved)
    assert parse_recipe(saved, ["dataset.args.api_key=y"], source="test").recipe.dataset.args


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "rollout_checkpointing: {interval_s: 3}",
            "rollout_checkpointing.interval_s: unknown key; here it is called "
            "rollout_checkpointing.snapshot_attempt_interval_s",
        ),
        (
            "rollout_recovery: {defualt_granularity: sibling}",
            "rollout_recovery.defualt_granularity: unknown key; the nearest known key is "
            "rollout_recovery.default_granularity",
        ),
        (
            "async_rl: {rollout_timeout_s: 3}",
            "async_rl.rollout_timeout_s: unknown key; the nearest known key is "
            "async_rl.rollout_failure.rollout_timeout_s",
        ),
        (
            "checkpoint: {save_period: 3}",
            "checkpoint: unknown key; the nearest known key is",
        ),
        (
            "async_rl: {sampler: windowed}",
            "async_rl.sampler: found 'windowed', required is a section with keys of its own; "
            "write async_rl.sampler.name: windowed",
        ),
        ("checkpointing: 3", "checkpointing: found 3, required is a section"),
        (
            "algorithm: {num_prompts_per_step: 0}",
            "algorithm.num_prompts_per_step: found 0, required: greater than 0",
        ),
        ("algorithm: {clip_low: .inf}", "algorithm.clip_low: found inf, required: a finite number"),
        ("seed: 1.5", "seed: found 1.5, required: a valid integer"),
        ("seed: true", "seed: found True, required: a number"),
        ("training: {learning_rate: true}", "training.learning_rate: found True, required: a"),
        ("telemetry: {console: 1}", "telemetry.console: found 1, required: true or false"),
        ("async_rl: {sampler: {name: lifo}}", "async_rl.sampler.name: found 'lifo', required: 'in"),
        ("dataset: {args: {a: [1]}}", "dataset.args.a: found [1], required: a string, number or"),
        (
            "rollout_checkpointing: {extra_fingerprint_excluded_paths: [a, 3]}",
            "rollout_checkpointing.extra_fingerprint_excluded_paths.1: found 3, required: a valid",
        ),
        (
            "checkpointing: {checkpoint_must_save_by: '3'}",
            "checkpointing.checkpoint_must_save_by: '3' is not a duration DD:HH:MM:SS",
        ),
        (
            "rollout_recovery: {default_granularity: sibling, default_level: sibling}",
            "rollout_recovery.default_granularity: found beside rollout_recovery.default_level",
        ),
        ("dataset: {args: {token: [x]}}", "dataset.args.token: found <hidden>, required:"),
        (f"seed: {'x' * 99}", f"seed: found '{'x' * 59}..., required: a valid integer"),
        ("model: {path: '${oc.env:NO_SUCH}'}", "model.path: KeyError raised while resolving"),
        ("seed: '${nowhere}'", "seed: Interpolation key 'nowhere' not found. Set it, or"),
        ("seed: '${no_resolver:1}'", "Unsupported interpolation type no_resolver"),
        ("seed: '${'", "seed"),
        ("- a", "recipe test: found a list; required are sections"),
        ("a: [", "recipe test: not valid YAML"),
        ("seed: 1\nseed: 2", "found duplicate key seed"),
    ],
)
def test_refusals_name_the_key_the_value_and_the_remedy(text: str, line: str) -> None:
    assert line in refusal(text)


def test_every_mistake_is_listed_at_once() -> None:
    text = refusal("seed: x\nalgorithm: {name: ppo}\nmodle: {path: x}")
    assert "seed: found 'x'" in text
    assert "algorithm.name: found 'ppo', required: 'grpo'" in text
    assert "modle: unknown key; the nearest known key is model" in text


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("seed", "--set seed: required is a.b=value"),
        ("=3", "--set =3: required is a.b=value"),
        ("a..b=3", "--set a..b=3: required is a.b=value"),
        ("seed=[", "--set seed=["),
        ("seed.x=3", "seed: found {'x': 3}, required: a valid integer"),
        ("algorithm.lr=3", "algorithm.lr: unknown key; here it is called training.learning_rate"),
    ],
)
def test_overrides_are_refused_like_the_file(override: str, line: str) -> None:
    assert line in refusal("", override)


def test_an_alias_is_accepted_in_the_file_and_on_the_command_line() -> None:
    for loaded in (
        parse_recipe("rollout_recovery: {default_granularity: prompt_group}", source="test"),
        parse_recipe("", ["rollout_recovery.default_granularity=prompt_group"], source="test"),
    ):
        assert loaded.recipe.rollout_recovery.default_level == "prompt_group"
