"""The public face of samplers: how a recipe names one, built in or `module:Class`.

May import: `sampler_base`, `sampler_kinds`, `errors`, `config`.
"""

from __future__ import annotations

import importlib
from typing import Final

from outlast.config.schema import SamplerSection
from outlast.errors import RecipeError
from outlast.model.sampler_base import (
    Groups,
    Sampler,
    SamplerBase,
    check_restored,
    check_selection,
)
from outlast.model.sampler_kinds import InOrder, ReadyFirst, WeightFifo, Windowed

__all__ = [
    "Groups",
    "InOrder",
    "ReadyFirst",
    "Sampler",
    "SamplerBase",
    "WeightFifo",
    "Windowed",
    "build_sampler",
    "check_restored",
    "check_selection",
    "load_sampler",
]

BUILT_IN: Final = frozenset({"in_order", "weight_fifo", "ready_first", "windowed"})
_MEMBERS: Final = (
    *("name", "stamps", "batch_size", "capacity_needed", "max_lag"),
    *("admits", "target", "admitted", "credited", "select", "evict", "abort"),
)


def build_sampler(section: SamplerSection, prompts_per_step: int) -> Sampler:
    """The sampler that a recipe names. Raises RecipeError with the key that is wrong."""
    if section.name == "in_order":
        return InOrder(prompts_per_step, section.lookahead)
    if section.name == "weight_fifo":
        return WeightFifo(prompts_per_step, section.max_staleness)
    if section.name == "ready_first":
        return ReadyFirst(prompts_per_step, section.max_staleness)
    if section.name == "windowed":
        return Windowed(
            prompts_per_step,
            section.max_staleness,
            over_sampling_ratio=section.over_sampling_ratio,
            freshest_first=section.freshest_first,
        )
    if section.target is None:
        raise RecipeError("sampler.name is custom; sampler.target must name it as module:Class")
    return load_sampler(section.target, prompts_per_step=prompts_per_step, args=section.args)


def load_sampler(
    target: str, *, prompts_per_step: int, args: dict[str, str | int | float | bool]
) -> Sampler:
    """Build the custom sampler `module:Class` as Class(prompts_per_step=P, **args).

    The class satisfies `Sampler` (deriving from `SamplerBase` gives the counters) and passes
    `outlast.testing.sampler_contract`. Raises RecipeError for whatever goes wrong in loading it.
    """
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name.isidentifier():
        raise RecipeError(f"sampler.target is {target!r}; module:Class is required")
    try:
        cls = getattr(importlib.import_module(module_name), class_name)
        sampler = cls(prompts_per_step=prompts_per_step, **args)
        missing = [member for member in _MEMBERS if not hasattr(sampler, member)]
        name = "" if missing else sampler.name
    except Exception as error:  # boundary: loading user code, which may raise anything
        raise RecipeError(
            f"sampler.target {target!r} could not be built with prompts_per_step="
            f"{prompts_per_step} and args {args}: {type(error).__name__}: {error}"
        ) from error
    if missing:
        raise RecipeError(f"sampler.target {target!r} lacks {', '.join(missing)}")
    if name in BUILT_IN:
        raise RecipeError(f"sampler.target {target!r} uses the built-in name {name!r}; rename it")
    if not isinstance(sampler, Sampler):
        raise RecipeError(f"sampler.target {target!r} does not satisfy outlast's Sampler")
    return sampler
