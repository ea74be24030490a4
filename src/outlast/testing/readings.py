"""What can be read of a simulation while it runs and afterwards.

May import: `ports`, `telemetry.events`, `testing.laws`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.ports import TokenChunk
from outlast.telemetry.events import AnyEvent, AttemptDispatched, Restored
from outlast.testing.laws import Auditor

if TYPE_CHECKING:
    from hashlib import _Hash


class Readings:
    """The part of `Simulation` that only reads."""

    auditor: Auditor
    events: list[AnyEvent]
    _restored: list[Restored]
    _trace: _Hash

    @property
    def trained(self) -> dict[int, tuple[int, ...]]:
        """Step -> ids of the groups it trained, along the surviving lineage."""
        steps: dict[int, list[int]] = {}
        for group, step in self.auditor.shadow.trained.items():
            steps.setdefault(step, []).append(group)
        return {step: tuple(sorted(steps[step])) for step in sorted(steps)}

    @property
    def dropped(self) -> dict[int, str]:
        """Group id -> reason, along the surviving lineage."""
        return dict(self.auditor.shadow.dropped)

    @property
    def sealed(self) -> dict[int, tuple[int, ...]]:
        """Unsettled group id -> its sealed siblings."""
        live = self.auditor.shadow.live
        return {group: tuple(sorted(sealed)) for group, sealed in live.items()}

    @property
    def received(self) -> dict[tuple[int, int], TokenChunk]:
        """Level token: (group, sibling) -> tokens that the unsealed sibling has received so far."""
        shadow = self.auditor.shadow
        return {slot: tokens.chunk() for slot, tokens in shadow.received.items()}

    @property
    def responses(self) -> dict[tuple[int, int], TokenChunk]:
        """(group, sibling) -> the newest response that was stored."""
        return {slot: tokens.chunk() for slot, tokens in self.auditor.responses.items()}

    @property
    def dispatched(self) -> list[str]:
        """Attempt keys that the running (or last) life dispatched, in order."""
        return [e.key for e in self.events if isinstance(e, AttemptDispatched)]

    @property
    def restored(self) -> list[Restored]:
        """Restore reports of all lives."""
        return list(self._restored)

    @property
    def weights(self) -> str:
        """Digest of the trainer's weights on the surviving lineage: its whole training history."""
        shadow = self.auditor.shadow
        return shadow.weights[shadow.version]

    @property
    def trace(self) -> str:
        """Digest of every event and every end so far, with its virtual time."""
        return self._trace.hexdigest()
