"""Field classes of the recipe: every leaf is SEMANTIC, TRAINING or OPERATIONAL (DESIGN 11).

SEMANTIC   what rollouts mean; a change is refused in every restore mode. The default when in doubt.
TRAINING   what an optimizer step does with rollouts; may change when no step must be replayed.
OPERATIONAL how fast, how often, how much, where: declared with a reason, never in the fingerprint.

`tests/config/test_partition.py` fails on a leaf without a class. May import: pydantic.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class FieldClass(StrEnum):
    """What a change of the field means for state made under the old value."""

    SEMANTIC = "semantic"
    TRAINING = "training"
    OPERATIONAL = "operational"


Scalar = str | int | float | bool | None
"""What a leaf of a recipe may hold, besides lists and dicts of it."""


class Section(BaseModel):
    """Base of every recipe section: frozen; unknown keys and non-finite numbers are refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


def _declared(
    kind: FieldClass, default: Any, *, reason: str, about: str, options: dict[str, Any]
) -> Any:
    extra: dict[str, JsonValue] = {"class": kind.value, "reason": reason}
    return Field(default, description=about, json_schema_extra=extra, **options)


def semantic(default: Any, about: str, **kwargs: Any) -> Any:
    """Declare a field that decides what rollouts mean. `...` as default makes it required."""
    return _declared(FieldClass.SEMANTIC, default, reason="", about=about, options=kwargs)


def training(default: Any, about: str, **kwargs: Any) -> Any:
    """Declare a field that only decides what an optimizer step does."""
    return _declared(FieldClass.TRAINING, default, reason="", about=about, options=kwargs)


def operational(default: Any, about: str, *, why: str, **kwargs: Any) -> Any:
    """Declare a field outside the fingerprint; `why` says why no rollout depends on it."""
    return _declared(FieldClass.OPERATIONAL, default, reason=why, about=about, options=kwargs)
