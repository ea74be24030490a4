"""Periodic duties and recorded metrics: due dates follow from what was done, never from a timer.

Restart-facing, so a duty that a crash interrupted is due after the restart and one that was done
is not repeated (known failure 29). May import: `ids`, `cut`.
"""

from __future__ import annotations

from collections.abc import Collection

from outlast.model.cut import Cut
from outlast.model.ids import TrainerVersion


class Duties:
    """What was last done at which trainer version, and the values that retention ranks by."""

    def __init__(self, cut: Cut | None = None) -> None:
        self._last_done = dict(cut.last_done) if cut else {}
        self._metrics = {version: dict(row) for version, row in cut.metrics.items()} if cut else {}

    def mark_done(self, duty: str, version: TrainerVersion) -> None:
        self._last_done[duty] = version

    def last_done(self, duty: str) -> TrainerVersion | None:
        """The version at which `duty` was last done along the lineage."""
        found = self._last_done.get(duty)
        return None if found is None else TrainerVersion(found)

    def record(self, version: TrainerVersion, name: str, *, value: float) -> None:
        """Note a metric of `version`."""
        self._metrics.setdefault(str(version), {})[name] = value

    def keep(self, versions: Collection[TrainerVersion]) -> None:
        """Forget metrics that nobody will ask for again: those of versions below the newest of
        `versions`, the trainer checkpoints that stand, and not among them. The initial model always
        stands."""
        newest = max(versions, default=TrainerVersion(0))
        self._metrics = {
            version: row
            for version, row in self._metrics.items()
            if int(version) >= newest or int(version) in (0, *versions)
        }

    @property
    def done(self) -> dict[str, int]:
        """Duty -> version (a copy, as a cut stores it)."""
        return dict(self._last_done)

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Trainer version -> metrics (a copy, as a cut stores it)."""
        return {version: dict(row) for version, row in self._metrics.items()}
