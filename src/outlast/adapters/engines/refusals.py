"""What every engine refuses, in the same words: requests and weights it must not take.

May import: `errors`, `model`, `ports`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from outlast.errors import DataFailure, Fenced, InvariantError
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationRequest, Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the loaded model holds: token ids in [0, vocabulary), sequences of `longest` tokens."""

    vocabulary: int = 0
    longest: int = 0


def check_request(
    request: GenerationRequest,
    *,
    fence: Incarnation | None,
    served: WeightVersion | None,
    running: Container[str],
    limits: Limits,
) -> None:
    """Refuse what cannot be generated. Raises Fenced, InvariantError or DataFailure."""
    if fence is not None and request.incarnation != fence:
        raise Fenced(
            f"request {request.id} of incarnation {request.incarnation} refused: the engine is "
            f"fenced to incarnation {fence}; a newer controller owns the run"
        )
    if served is None:
        raise InvariantError(
            f"request {request.id} refused: no weights were loaded; call update_weights first"
        )
    if request.id in running:
        raise InvariantError(f"request {request.id} refused: the id is still being generated")
    _check_tokens(request, limits)


def _check_tokens(request: GenerationRequest, limits: Limits) -> None:
    prompt = request.prompt_ids
    for ids in (prompt, prompt[:0] if request.prefix is None else request.prefix.ids):
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < limits.vocabulary:
            raise DataFailure(
                f"request {request.id}: token ids {int(ids.min())}..{int(ids.max())}, "
                f"required within [0, {limits.vocabulary})"
            )
    if not len(prompt):
        raise DataFailure(f"request {request.id}: the prompt has no tokens")
    if len(prompt) >= limits.longest:
        raise DataFailure(
            f"request {request.id}: the prompt has {len(prompt)} tokens, the model holds "
            f"{limits.longest}: shorten or drop the prompt"
        )


def tensors_of(weights: Weights) -> Mapping[str, Any]:
    """The payload as parameter names and tensors. Raises InvariantError for anything else."""
    if not isinstance(weights.payload, Mapping):
        raise InvariantError(
            f"update_weights {weights.version}: payload is {type(weights.payload).__name__}, "
            "required a mapping of parameter names to tensors (see TorchTrainer.weights)"
        )
    return weights.payload
