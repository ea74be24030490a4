"""What must be true of a run, kept from what is seen outside it: the shadow of the recovery state.

Fed by the event stream, by the fakes and by the plane; it shares no code with `model`. A copy is
put aside at the instant of every cut, so that a restore can be compared with what really stood.
May import: `telemetry.events`, `testing.fake_trainer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from outlast.testing.fake_trainer import INITIAL

Slot = tuple[int, int]
"""(group, sibling)."""


@dataclass(slots=True)
class Shadow:
    """One position along the lineage."""

    live: dict[int, dict[int, str]] = field(default_factory=dict)
    """Unsettled group -> sibling -> key of its sealed attempt."""
    committed: set[int] = field(default_factory=set)
    trained: dict[int, int] = field(default_factory=dict)
    """Group -> step."""
    dropped: dict[int, str] = field(default_factory=dict)
    weights: dict[int, str] = field(default_factory=lambda: {0: INITIAL})
    """Trainer version -> weights digest."""
    version: int = 0

    def copy(self) -> Shadow:
        """A copy that later events do not change."""
        return Shadow(
            live={group: dict(sealed) for group, sealed in self.live.items()},
            committed=set(self.committed),
            trained=dict(self.trained),
            dropped=dict(self.dropped),
            weights=dict(self.weights),
            version=self.version,
        )

    @property
    def known(self) -> int:
        """Groups that are live, trained or dropped."""
        return len(self.live) + len(self.trained) + len(self.dropped)

    def settle(self, group: int) -> None:
        """The group leaves the live ones."""
        self.live.pop(group, None)
        self.committed.discard(group)

    def finish(self, step: int, groups: tuple[int, ...]) -> None:
        """An optimizer step over `groups` has happened."""
        for group in groups:
            self.settle(group)
            self.trained[group] = step
        self.version = step

    def forget_incomplete(self, siblings: int) -> None:
        """Level prompt_group: an interrupted group has lost what it had sealed."""
        for sealed in self.live.values():
            if len(sealed) < siblings:
                sealed.clear()
