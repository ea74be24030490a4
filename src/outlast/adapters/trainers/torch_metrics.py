"""Sums over a step that become its metrics. May import: nothing of Outlast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


def _integers() -> defaultdict[str, int]:
    return defaultdict(int)


def _floats() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class StepSums:
    """Everything a step adds up over its chunks; `count` holds integers, `total` real numbers."""

    count: dict[str, int] = field(default_factory=_integers)
    total: dict[str, float] = field(default_factory=_floats)
    dlogp_max: float = 0.0
    ratio_max: float = 0.0

    @classmethod
    def merged(cls, parts: Iterable[StepSums]) -> StepSums:
        """The sums of several ranks; added in the order given, so that bits do not vary."""
        result = cls()
        for part in parts:
            for name, number in part.count.items():
                result.count[name] += number
            for name, value in part.total.items():
                result.total[name] += value
            result.dlogp_max = max(result.dlogp_max, part.dlogp_max)
            result.ratio_max = max(result.ratio_max, part.ratio_max)
        return result

    def metrics(self, *, normaliser: int) -> dict[str, float]:
        """Scalars of the finished step, loss included; every name is always present but `kl`.

        `tokens` are the valid tokens of the step, zero-variance groups included; `dlogp_*`,
        `ratio_*`, `clip_fraction`, `truncated_fraction` and `sampler_kl` are over the tokens that
        were computed (`trained_tokens`), since silent groups are skipped.
        """
        samples = max(self.count["samples"], 1)
        computed = max(self.count["trained_tokens"], 1)
        result = {
            "loss": self.total["loss"] / max(normaliser, 1),
            "reward_mean": self.total["reward"] / max(self.count["kept"], 1),
            "response_length": self.total["response_length"] / samples,
            "tokens": float(self.count["tokens"]),
            "trained_tokens": float(self.count["trained_tokens"]),
            "groups": float(self.count["groups"]),
            "silent_groups": float(self.count["silent_groups"]),
            "dlogp_mean": self.total["dlogp"] / computed,
            "dlogp_max": self.dlogp_max,
            "ratio_mean": self.total["ratio"] / computed,
            "ratio_max": self.ratio_max,
            "clip_fraction": self.total["clipped"] / computed,
            "truncated_fraction": self.total["truncated"] / computed,
            "sampler_kl": self.total["sampler_kl"] / computed,
        }
        if "kl" in self.total:
            result["kl"] = self.total["kl"] / computed
        return result
