"""Length bias: are the responses that were trained as long as those that were generated?

Asynchronous training can prefer short responses without anybody asking for it: long ones grow
stale, run into time-outs, or are masked, and what is trained is no longer a sample of what the
policy says. The audit shows it by comparing lengths. May import: `model`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from outlast.model.groups import Group
from outlast.model.journal import Applied, Dropped

Z_SHOWN = 3.0
"""A difference of so many standard errors is called a bias."""
GROUPS_MIN = 10
"""Fewer settled groups prove nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Response lengths, in tokens; zeros when there are none."""

    responses: int
    mean: float
    p50: float
    p90: float
    longest: int

    @classmethod
    def of(cls, lengths: Iterable[int]) -> LengthSummary:
        found = sorted(lengths)
        if not found:
            return cls(responses=0, mean=0.0, p50=0.0, p90=0.0, longest=0)
        return cls(
            responses=len(found),
            mean=statistics.fmean(found),
            p50=statistics.median(found),
            p90=float(found[math.ceil(0.9 * len(found)) - 1]),
            longest=found[-1],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthAudit:
    """Lengths of the finished responses by what became of them."""

    trained: LengthSummary
    masked: LengthSummary
    """Finished in a group that was trained, and left out of the loss."""
    dropped: LengthSummary
    """Finished in a group that was dropped."""
    outstanding: LengthSummary
    """Finished and not settled; no part of the comparison."""
    unfinished: int
    """Responses of dropped groups that never finished; the longest are likely among them."""
    ratio: float | None
    """Mean length of trained responses / mean length of all finished ones of settled groups."""
    z: float | None
    """Difference of the two means in standard errors; None when too little was settled or nothing
    was left out."""

    @property
    def biased(self) -> bool:
        return self.z is not None and abs(self.z) >= Z_SHOWN


@dataclass(slots=True)
class LengthBooks:
    """Collects lengths while the audit reads the records of the lineage."""

    _groups: list[tuple[Sequence[int], Sequence[int]]] = field(default_factory=list)
    """(trained, finished and not trained) per settled group."""
    _masked: list[int] = field(default_factory=list)
    _dropped: list[int] = field(default_factory=list)
    _outstanding: list[int] = field(default_factory=list)
    _unfinished: int = 0

    def applied(self, record: Applied) -> None:
        for trained, masked in zip(record.lengths, record.masked, strict=False):
            self._groups.append((trained, masked))
            self._masked += masked

    def dropped(self, record: Dropped) -> None:
        self._groups.append(((), record.lengths))
        self._dropped += record.lengths
        self._unfinished += record.unfinished

    def outstanding(self, group: Group) -> None:
        self._outstanding += (receipt.response_tokens for receipt in group.receipts())

    def close(self) -> LengthAudit:
        ratio, z = _bias(self._groups)
        return LengthAudit(
            trained=LengthSummary.of(n for trained, _ in self._groups for n in trained),
            masked=LengthSummary.of(self._masked),
            dropped=LengthSummary.of(self._dropped),
            outstanding=LengthSummary.of(self._outstanding),
            unfinished=self._unfinished,
            ratio=ratio,
            z=z,
        )


def _bias(
    groups: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[float | None, float | None]:
    """(ratio of the means, z of their difference).

    Both means are ratio estimators over groups, since siblings share a prompt and are no
    independent draws; the variance is the linearised one (Cochran, Sampling Techniques, 3rd ed.,
    1977, 6.3).
    """
    taken = [(sum(trained), len(trained)) for trained, _ in groups]
    every = [(sum(t) + sum(r), len(t) + len(r)) for t, r in groups]
    n_taken, n_every = sum(n for _, n in taken), sum(n for _, n in every)
    if not n_taken or not sum(total for total, _ in every):
        return None, None
    mean_taken = sum(total for total, _ in taken) / n_taken
    mean_every = sum(total for total, _ in every) / n_every
    ratio = mean_taken / mean_every
    if n_taken == n_every or len(groups) < GROUPS_MIN:
        return ratio, None
    influence = [
        (tt - mean_taken * nt) / n_taken - (te - mean_every * ne) / n_every
        for (tt, nt), (te, ne) in zip(taken, every, strict=True)
    ]
    error = math.sqrt(len(groups) / (len(groups) - 1) * sum(u * u for u in influence))
    return ratio, (mean_taken - mean_every) / error if error else None
