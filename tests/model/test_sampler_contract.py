"""The shipped contract suite: built-in samplers pass it, every kind of fault fails it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.config.schema import SamplerSection
from outlast.errors import InvariantError, RecipeError
from outlast.model.cut import SamplerState
from outlast.model.ids import GroupId, TrainerVersion
from outlast.model.samplers import (
    Groups,
    InOrder,
    ReadyFirst,
    Sampler,
    SamplerBase,
    WeightFifo,
    Windowed,
    build_sampler,
    load_sampler,
)
from outlast.testing.sampler_contract import check_run, check_sampler

Factory = Callable[[int], Sampler]
HERE = __name__

BUILT_IN: list[Factory] = [
    lambda P: InOrder(P, 0),
    lambda P: InOrder(P, 2),
    lambda P: WeightFifo(P, 0),
    lambda P: WeightFifo(P, 2),
    lambda P: ReadyFirst(P, 0),
    lambda P: ReadyFirst(P, 3),
    lambda P: Windowed(P, 0),
    lambda P: Windowed(P, 2, over_sampling_ratio=1.5),
    lambda P: Windowed(P, 1, freshest_first=True),
]


@pytest.mark.parametrize("factory", BUILT_IN)
def test_built_in_samplers_keep_the_contract(factory: Factory) -> None:
    check_sampler(factory)


@pytest.mark.parametrize("factory", BUILT_IN)
@given(P=st.integers(1, 6), seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_s8_l4_no_sampler_starves_or_ages(factory: Factory, P: int, seed: int) -> None:
    sampler = factory(P)
    worst = check_run(sampler, prompts_per_step=P, steps=12, seed=seed)
    assert sampler.max_lag is None or worst <= sampler.max_lag


@dataclass(frozen=True)
class Mine(SamplerBase):
    """A working custom sampler: on-policy, newest first, counting its calls in `own`."""

    bonus: int = 0

    @property
    def capacity_needed(self) -> int:
        return self.prompts_per_step + self.bonus

    @property
    def max_lag(self) -> int | None:
        return None

    def admits(
        self,
        state: SamplerState,
        groups: Groups,
        *,
        version: TrainerVersion,
        acknowledged: TrainerVersion,
    ) -> bool:
        return len(groups) < self.capacity_needed

    def select(
        self,
        groups: Groups,
        version: TrainerVersion,
        *,
        at_least: int,
        at_most: int,
    ) -> tuple[GroupId, ...]:
        found = sorted(g.id for g in groups.values() if g.state == "buffered")[::-1][:at_most]
        return tuple(found) if len(found) >= at_least else ()


class SelectsAnything(Mine):
    def select(self, groups: Any, version: Any, *, at_least: int, at_most: int) -> Any:
        found = sorted(groups)[:at_most]
        return tuple(found) if len(found) >= at_least else ()


class SelectsTooFew(Mine):
    def select(self, groups: Any, version: Any, *, at_least: int, at_most: int) -> Any:
        return super().select(groups, version, at_least=1, at_most=at_most)


class SelectsTwice(Mine):
    def select(self, groups: Any, version: Any, *, at_least: int, at_most: int) -> Any:
        return super().select(groups, version, at_least=at_least, at_most=1) * at_most


class DependsOnTheMapping(Mine):
    def select(self, groups: Any, version: Any, *, at_least: int, at_most: int) -> Any:
        found = [g.id for g in groups.values() if g.state == "buffered"][:at_most]
        return tuple(found) if len(found) >= at_least else ()


class EvictsAnything(Mine):
    def evict(self, groups: Any, version: Any) -> Any:
        return tuple(sorted(groups))


class Random(Mine):
    calls = itertools.count()

    def admits(self, state: Any, groups: Any, *, version: Any, acknowledged: Any) -> bool:
        return next(self.calls) % 2 == 0


class TooOld(Mine):
    @property
    def max_lag(self) -> int | None:
        return 0


class Starves(Mine):
    """Admits one step's worth and never again: forgets that steps consume admissions."""

    def admits(self, state: Any, groups: Any, *, version: Any, acknowledged: Any) -> bool:
        return bool(state.admitted - state.credited < self.prompts_per_step)


class Miscounts(Mine):
    def credited(self, state: SamplerState, count: int) -> SamplerState:
        return state


class Overstates(Mine):
    @property
    def stamps(self) -> bool:
        return True


FAULTS: list[tuple[type[Mine], str]] = [
    (SelectsAnything, "not buffered"),
    (SelectsTooFew, r"selected \d groups, asked \d"),
    (SelectsTwice, "selected a group twice|selected 2 groups, asked 1..1"),
    (DependsOnTheMapping, "select depends on the mapping's order"),
    (EvictsAnything, "evict of group"),
    (Random, "admits differs"),
    (TooOld, "S8: .* lags"),
    (Starves, "starves: step 2 never filled up"),
    (Miscounts, r"credited\(\) must count"),
    (Overstates, "stamps is True, target is None"),
]


@pytest.mark.parametrize(("kind", "message"), FAULTS)
def test_the_contract_catches(kind: type[Mine], message: str) -> None:
    with pytest.raises((AssertionError, InvariantError), match=message):
        check_sampler(lambda P: kind(prompts_per_step=P))


def test_a_custom_sampler_keeps_the_contract_and_loads_by_name() -> None:
    section = SamplerSection(name="custom", target=f"{HERE}:Mine", args={"bonus": 2})
    sampler = build_sampler(section, 4)
    assert sampler.name == f"{HERE}:Mine" and sampler.capacity_needed == 6
    check_sampler(lambda P: load_sampler(f"{HERE}:Mine", prompts_per_step=P, args={"bonus": 2}))


class Nameless:
    def __init__(self, prompts_per_step: int) -> None:
        self.name = "nameless"


class Impostor(Mine):
    @property
    def name(self) -> str:
        return "windowed"


@pytest.mark.parametrize(
    ("target", "args", "message"),
    [
        ("nocolon", {}, "'nocolon'; module:Class is required"),
        (":Mine", {}, "module:Class is required"),
        ("no.such.module:X", {}, "could not be built.*ModuleNotFoundError"),
        (f"{HERE}:Absent", {}, "could not be built.*AttributeError"),
        (f"{HERE}:Mine", {"unknown": 1}, "could not be built.*TypeError.*unknown"),
        (f"{HERE}:Nameless", {}, "lacks stamps, batch_size, .*select, evict, abort"),
        (f"{HERE}:Impostor", {}, "uses the built-in name 'windowed'"),
    ],
)
def test_a_bad_custom_target_is_a_recipe_error(
    target: str, args: dict[str, int], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        load_sampler(target, prompts_per_step=4, args=dict(args))


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (SamplerSection(name="in_order", lookahead=3), InOrder(8, 3)),
        (SamplerSection(name="weight_fifo", max_staleness=2), WeightFifo(8, 2)),
        (SamplerSection(name="ready_first", max_staleness=2), ReadyFirst(8, 2)),
        (
            SamplerSection(over_sampling_ratio=1.5, freshest_first=True),
            Windowed(8, 1, over_sampling_ratio=1.5, freshest_first=True),
        ),
    ],
)
def test_recipes_name_samplers(section: SamplerSection, expected: Sampler) -> None:
    assert build_sampler(section, 8) == expected


def test_recipe_mistakes_are_named() -> None:
    with pytest.raises(RecipeError, match=r"sampler\.target must name it"):
        build_sampler(SamplerSection(name="custom"), 4)
