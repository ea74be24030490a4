"""DESIGN 11: projection, exclusions, verdicts, and messages that hide what they must."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.config.load import parse_recipe
from outlast.config.schema import Recipe
from outlast.durable.exclusions import LIST, excluded, matches
from outlast.durable.fingerprint import (
    Fingerprint,
    Identities,
    compare,
    fingerprint_of,
    read_fingerprint,
)
from outlast.durable.manifest import encode
from outlast.errors import CorruptData, FingerprintMismatch, RecipeError, UnsupportedFormat

IDENTITIES = Identities(model="m1", tokenizer="t1", dataset="d1", environment="e1")


def made(*overrides: str, **identities: str) -> Fingerprint:
    recipe = parse_recipe("", overrides, source="test").recipe
    return fingerprint_of(recipe, msgspec.structs.replace(IDENTITIES, **identities))


def excluding(*patterns: str, text: str = "") -> Fingerprint:
    base: dict[str, Any] = parse_recipe(text, source="test").recipe.model_dump()
    base["rollout_checkpointing"]["extra_fingerprint_excluded_paths"] = patterns
    return fingerprint_of(Recipe.model_validate(base), IDENTITIES)


def test_a_fingerprint_survives_its_encoding() -> None:
    found = made("dataset.args.n=3", "dataset.args.x=1.5", "dataset.args.flag=true", "seed=7")
    again = read_fingerprint(encode(found), where="snapshot_000001")
    assert again == found and again.digest == found.digest
    assert compare(again, found, steps_to_replay=3).changes == ()
    assert found.semantic["seed"] == 7
    assert "training.learning_rate" in found.training


def test_the_digest_does_not_depend_on_the_order_of_user_keys() -> None:
    a, b = "dataset.args.a=1", "dataset.args.b=2"
    assert made(a, b).digest == made(b, a).digest


def test_an_unknown_field_or_another_format_is_refused() -> None:
    data = encode(made())
    with pytest.raises(CorruptData, match=r"fingerprint\.json is not a valid Fingerprint"):
        read_fingerprint(data.replace(b'"format"', b'"fromat"'), where="fingerprint.json")
    with pytest.raises(UnsupportedFormat, match="format 2; this release reads format 1"):
        read_fingerprint(data.replace(b'"format":1', b'"format":2'), where="fingerprint.json")


@pytest.mark.parametrize("name", ["model", "tokenizer", "dataset", "environment"])
def test_a_changed_identity_is_refused_with_its_remedy(name: str) -> None:
    verdict = compare(made(), made(**{name: "other"}), steps_to_replay=0)
    assert not verdict.accepted
    (change,) = verdict.refused
    assert change.dotpath == f"identity.{name}"
    assert f'"{name[0]}1" -> "other"' in str(change)
    assert len(change.remedy) > 20


def test_a_refusal_lists_every_difference_with_its_remedy() -> None:
    stored = made("generation.temperature=1.0", "dataset.args.old=1")
    current = made("generation.temperature=0.5", "dataset.args.new=2", "validation.size=9")
    with pytest.raises(FingerprintMismatch) as caught:
        compare(stored, current, steps_to_replay=0).require(where="snapshot_000007")
    text = str(caught.value)
    assert "snapshot_000007 was made under another recipe: 3 fields differ" in text
    assert "generation.temperature (semantic): 1.0 -> 0.5. Set it back to 1.0" in text
    assert "dataset.args.old (semantic): 1 -> (absent). Set it back to 1" in text
    assert "dataset.args.new (semantic): (absent) -> 2. Remove it" in text
    assert "choose a new run directory" in text and "Nothing was changed" in text
    assert "validation.size" not in text


def test_a_training_change_stands_only_in_the_way_of_replay() -> None:
    stored, current = made(), made("training.learning_rate=1e-5")
    idle = compare(stored, current, steps_to_replay=0)
    idle.require(where="x")
    assert [str(change) for change in idle.changes] == [
        "training.learning_rate (training): 0.0001 -> 0.00001"
    ]
    with pytest.raises(FingerprintMismatch, match="1 field differs") as caught:
        compare(stored, current, steps_to_replay=2).require(where="x")
    assert "restore a trainer checkpoint that needs no step replayed" in str(caught.value)


def test_values_of_other_types_differ() -> None:
    for text in ("1.0", "true", '"1"'):
        verdict = compare(
            made("dataset.args.n=1"), made(f"dataset.args.n={text}"), steps_to_replay=0
        )
        assert not verdict.accepted


def test_secrets_never_enter_and_are_never_shown() -> None:
    one, two = made("dataset.args.api_key=aaa"), made("dataset.args.api_key=bbb")
    assert b"aaa" not in encode(one)
    assert one.digest == two.digest == made().digest
    planted = msgspec.structs.replace(one, semantic={**one.semantic, "x.password": "hunter2"})
    (change,) = compare(planted, one, steps_to_replay=0).changes
    assert "hunter2" not in str(change) and "<hidden>" in str(change)


def test_long_values_are_clipped_and_logins_in_urls_hidden() -> None:
    verdict = compare(made("model.path=" + "p" * 200), made(), steps_to_replay=0)
    assert len(verdict.changes[0].old) == 83
    verdict = compare(made("model.path=s3://me:pw@host/x"), made(), steps_to_replay=0)
    assert verdict.changes[0].old == '"s3://<hidden>@host/x"'


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("generation.top_k", "generation.top_k", True),
        ("generation.*", "generation.top_k", True),
        ("*.top_k", "generation.top_k", True),
        ("*", "generation.top_k", False),
        ("generation", "generation.top_k", False),
        ("async_rl.*", "async_rl.sampler.name", False),
        ("async_rl.**", "async_rl.sampler.name", True),
        ("**.name", "async_rl.sampler.name", True),
        ("async_rl.**.name", "async_rl.name", True),
        ("dataset.args", "dataset.args.n", True),
        ("dataset.args.n", "dataset.args.n", True),
        ("dataset.args.m", "dataset.args.n", False),
        ("dataset.args.*", "dataset.args.n", True),
    ],
)
def test_wildcards(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


def test_an_excluded_path_may_change_and_the_list_may_not() -> None:
    listed = excluding("generation.top_k", "dataset.args.*")
    moved = excluding(
        "generation.top_k",
        "dataset.args.*",
        text="generation: {top_k: 9}\ndataset: {args: {n: 4}}",
    )
    assert listed.digest == moved.digest
    verdict = compare(made("generation.top_k=3"), moved, steps_to_replay=0)
    assert [change.dotpath for change in verdict.refused] == [LIST]


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("*", "'*': a bare wildcard excludes everything"),
        ("**", "'**': a bare wildcard"),
        ("*.**", "'*.**': a bare wildcard"),
        ("generation.top*", "required are names between dots"),
        ("generation..top_k", "required are names between dots"),
        ("", "required are names between dots"),
        ("generation.topk", "matches no field; the nearest known one is generation.top_k"),
        ("generation", "matches no field"),
        ("nowhere.**", "matches no field"),
        ("telemetry.*", "matches only operational fields"),
        ("rollout_checkpointing.*", "matches only operational fields"),
        (LIST, "the list is part of the identity"),
    ],
)
def test_exclusions_that_exclude_nothing_or_everything_are_refused(pattern: str, line: str) -> None:
    with pytest.raises(RecipeError) as caught:
        excluding(pattern)
    assert line in str(caught.value)


def test_a_key_of_a_dict_may_be_excluded_before_it_is_given() -> None:
    assert excluding("dataset.args.later").semantic[LIST] == ("dataset.args.later",)


def test_a_wildcard_over_the_list_leaves_the_list_in() -> None:
    pattern = "**.rollout_checkpointing.**"
    with pytest.raises(RecipeError, match="matches only operational fields"):
        excluding(pattern)
    assert not excluded([pattern], LIST)
