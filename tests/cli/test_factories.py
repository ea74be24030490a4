"""What a recipe chooses, and how tools that only look avoid a cluster."""

from __future__ import annotations

import pytest

from outlast.cli.factories import in_this_process, make_engine, make_trainer, weight_transfer
from outlast.config.load import parse_recipe
from outlast.config.schema import Recipe
from outlast.runtime.guards_placement import uses_ray

CLUSTER = (
    "generation.placement=ray",
    "generation.num_engines=3",
    "training.backend=fsdp2",
    "training.world_size=2",
    "data_plane.impl=transfer_queue",
    "data_plane.storage_units=2",
)


def recipe(*overrides: str) -> Recipe:
    return parse_recipe("", overrides, source="test").recipe


def test_tools_that_only_look_need_no_cluster() -> None:
    away = recipe(*CLUSTER, "generation.temperature=0.7", "training.learning_rate=0.5")
    here = in_this_process(away)
    assert uses_ray(away) and not uses_ray(here)
    assert here.generation.num_engines == here.training.world_size == 1
    assert (here.generation.temperature, here.training.learning_rate) == (0.7, 0.5)
    make_engine(here)
    make_trainer(here, plane=None)  # type: ignore[arg-type]  # nothing is read before a step


@pytest.mark.parametrize(
    ("overrides", "way"),
    [
        ((), "in_process"),
        (("generation.num_engines=2",), "in_process"),
        (("generation.placement=ray",), "file"),
        (("training.backend=fsdp2",), "file"),
        (("generation.placement=ray", "ray.address=auto"), "ray"),
        (("generation.placement=ray", "generation.weight_transfer=ray"), "ray"),
    ],
)
def test_weights_travel_by_the_cheapest_way_that_reaches_every_engine(
    overrides: tuple[str, ...], way: str
) -> None:
    assert weight_transfer(recipe(*overrides)) == way
