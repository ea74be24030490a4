"""How often to snapshot: the interval that loses least, from what a snapshot costs.

With kills at random, MTBF apart in the mean, and a cost C per snapshot, an interval T wastes about
C/T on snapshots and (T/2 + C)/MTBF on work done again, least at T = sqrt(2 MTBF C) (Young 1974, "A
first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order estimate
of the optimum checkpoint interval for restart dumps", refines it where C nears MTBF). C is the time
from cut to acknowledgement. Snapshots here run beside training, so C is an upper bound of what one
really takes away, and T errs on the long side. Pure. May import: nothing of Outlast.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

SHORTEST_S, LONGEST_S = 1.0, 600.0
"""Bounds of a chosen interval: shorter gains nothing, longer trusts the estimate too far."""
FIRST_S = SHORTEST_S
"""Interval before anything was measured: the first snapshot is also the first measurement."""
COSTS_KEPT = 32
"""Latest costs that the mean is taken over: rows grow during a run, and costs with them."""

TELL_FROM = 0.1
"""A change by this share is worth an event."""


def optimal_interval(*, mtbf_s: float, cost_s: float) -> float:
    """sqrt(2 x MTBF x cost) in seconds (Young 1974), not bounded."""
    return math.sqrt(2.0 * mtbf_s * cost_s)


def chosen_interval(*, mtbf_s: float, cost_s: float) -> float:
    """The optimum within [SHORTEST_S, LONGEST_S]."""
    return min(LONGEST_S, max(SHORTEST_S, optimal_interval(mtbf_s=mtbf_s, cost_s=cost_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """What an interval is expected to cost; shares of the run's time."""

    interval_s: float
    overhead: float
    """Taking snapshots: C/T, at most 1."""
    loss_s: float
    """Work lost per kill: T/2 + C."""
    loss: float
    """The same as a share: loss_s / MTBF."""

    @property
    def total(self) -> float:
        return self.overhead + self.loss


def waste(interval_s: float, *, mtbf_s: float, cost_s: float) -> Waste:
    """The expectation for one interval. An interval below the cost becomes the cost."""
    spacing = max(interval_s, cost_s)
    lost = spacing / 2.0 + cost_s
    return Waste(
        interval_s=interval_s,
        overhead=cost_s / spacing if spacing else 0.0,
        loss_s=lost,
        loss=lost / mtbf_s,
    )


class Cadence:
    """The interval that is in force: fixed, or chosen anew after each measured snapshot."""

    def __init__(self, interval_s: float | None, *, mtbf_s: float | None) -> None:
        self.interval_s = interval_s
        self._mtbf_s = mtbf_s
        self.cost_s = 0.0
        """Mean cost that the interval was chosen from."""
        self._told_s = interval_s
        self._costs: deque[float] = deque(maxlen=COSTS_KEPT)

    def measured(self, cost_s: float) -> bool:
        """A snapshot took `cost_s` from its cut to its acknowledgement.

        True when the interval has moved so far since the last True that somebody should know.
        """
        if self._mtbf_s is None or self.interval_s is None or self._told_s is None:
            return False
        self._costs.append(cost_s)
        self.cost_s = sum(self._costs) / len(self._costs)
        self.interval_s = chosen_interval(mtbf_s=self._mtbf_s, cost_s=self.cost_s)
        moved = abs(self.interval_s - self._told_s) >= TELL_FROM * self._told_s
        if moved:
            self._told_s = self.interval_s
        return moved
