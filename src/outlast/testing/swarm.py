"""Many lineages, one report: what was survived and reached, every violation with its seed.

May import: `testing`, `model.table`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import msgspec

from outlast.model import ledger
from outlast.model.groups import GroupState
from outlast.model.ledger import Ledger
from outlast.model.table import Event, Refusal, targets
from outlast.testing.lineage import LineageResult, run_lineage
from outlast.testing.plan import LineagePlan, draw_plan

COLLECT_EVERY = 25
"""Lineages between two garbage collections; within a lineage there is none."""


@dataclass(slots=True)
class Violation:
    """A broken law and how to see it again."""

    seed: int
    message: str
    plan: LineagePlan


@dataclass(slots=True)
class SwarmReport:
    """Sums over lineages."""

    lineages: int = 0
    lives: int = 0
    crashes: int = 0
    virtual_s: float = 0.0
    checks: int = 0
    lag_max: int = 0
    gave_up: int = 0
    twins: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    """Snapshots and checkpoints by outcome, and what late answers came to."""
    marks: Counter[str] = field(default_factory=Counter)
    cells: Counter[str] = field(default_factory=Counter)
    """Hits per allowed (state, event) cell of the ledger's table."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Lineages per sampler and recovery level."""
    violations: list[Violation] = field(default_factory=list)

    def add(self, result: LineageResult) -> None:
        """Take one lineage in."""
        plan = result.plan
        self.lineages += 1
        self.lives += len(result.ends)
        self.crashes += result.crashes
        self.virtual_s += result.virtual_s
        self.checks += result.checks
        self.lag_max = max(self.lag_max, result.lag_max)
        self.gave_up += result.gave_up
        self.twins += plan.twin
        self.outcomes.update(result.outcomes)
        self.marks.update(result.marks)
        self.kinds[f"{plan.shape.sampler} x {plan.shape.level}"] += 1
        if result.violation is not None:
            self.violations.append(Violation(plan.seed, result.violation, plan))

    def merge(self, other: SwarmReport) -> None:
        """Take another report in."""
        for name in ("lineages", "lives", "crashes", "virtual_s", "checks", "gave_up", "twins"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.lag_max = max(self.lag_max, other.lag_max)
        for name in ("outcomes", "marks", "cells", "kinds"):
            getattr(self, name).update(getattr(other, name))
        self.violations += other.violations

    def document(self) -> dict[str, object]:
        """The report for machines."""
        return {
            "ok": not self.violations,
            "lineages": self.lineages,
            "lives": self.lives,
            "crashes": self.crashes,
            "twins": self.twins,
            "gave_up": self.gave_up,
            "simulated_s": round(self.virtual_s, 1),
            "checks": self.checks,
            "lag_max": self.lag_max,
            "outcomes": dict(self.outcomes),
            "kinds": dict(self.kinds),
            "never_reached": sorted(ALLOWED - self.cells.keys()),
            "violations": [{"seed": v.seed, "message": v.message} for v in self.violations],
        }

    def text(self) -> str:
        """The report for people."""
        lines = [
            f"lineages      {self.lineages} ({self.gave_up} spent a run budget, {self.twins} "
            "compared with an undisturbed twin)",
            f"lives         {self.lives}, of which {self.crashes} crashed",
            f"simulated     {self.virtual_s / 3600:.1f} hours, {self.checks:,} checks of laws",
            f"largest lag   {self.lag_max} trainer versions",
            f"outcomes      {_counted(self.outcomes)}",
            f"marks         {_counted(self.marks)}",
            f"kinds         {_counted(self.kinds)}",
            f"ledger cells  {_counted(self.cells)}",
            f"never reached {', '.join(sorted(ALLOWED - self.cells.keys())) or 'nothing'}",
            f"violations    {len(self.violations)}",
        ]
        lines += [f"  seed {v.seed}: {v.message}" for v in self.violations]
        return "\n".join(lines)


ALLOWED = frozenset(
    f"{state or '-'} {event}"
    for event in Event
    for state in (None, *GroupState)
    if not isinstance(targets(state, event), Refusal)
)
"""Every allowed cell of the ledger's table."""


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {counter[name]}" for name in sorted(counter)) or "none"


@contextmanager
def counting_cells(cells: Counter[str]) -> Iterator[None]:
    """Count the (state, event) cells that the ledger goes through."""
    real = Ledger._resolve

    def resolve(self: Ledger, *where: Any) -> tuple[GroupState, ...]:
        group_id, event = where
        group = self.groups.get(group_id)
        found = real(self, group_id, event)
        cells[f"{group.state if group else '-'} {event}"] += 1
        return found

    ledger.Ledger._resolve = resolve  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ledger.Ledger._resolve = real  # type: ignore[method-assign]


def run_seeds(seeds: Iterable[int]) -> SwarmReport:
    """Run lineages one after another in this process."""
    report = SwarmReport()
    with counting_cells(report.cells):
        for number, seed in enumerate(seeds):
            report.add(run_lineage(draw_plan(seed)))
            if number % COLLECT_EVERY == 0:
                gc.collect()
    return report


def run_swarm(*, start: int, seeds: int, jobs: int) -> SwarmReport:
    """Run `seeds` lineages from seed `start` on, in `jobs` processes."""
    if jobs <= 1:
        return run_seeds(range(start, start + seeds))
    total = SwarmReport()
    shares = [list(range(start + job, start + seeds, jobs)) for job in range(jobs)]
    with get_context("spawn").Pool(jobs) as pool:
        for report in pool.imap(run_seeds, shares):
            total.merge(report)
    total.violations.sort(key=lambda violation: violation.seed)
    return total


def to_json(plan: LineagePlan) -> bytes:
    """A plan as it is kept under ``tests/sim/regressions``."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1)


def from_json(data: bytes) -> LineagePlan:
    """Read a kept plan. Raises msgspec.ValidationError for one of another release."""
    return msgspec.json.decode(data, type=LineagePlan)
