"""What must be true of a run, kept from what is seen outside it: the shadow of the recovery state.

Fed by the event stream, by the fakes and by the plane; it shares no code with `model`. A copy is
put aside at the instant of every cut, so that a restore can be compared with what really stood.
May import: `ports`, `testing.fake_trainer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from outlast.ports import TokenChunk
from outlast.rows import Row
from outlast.testing.fake_trainer import INITIAL, SeenGroup

Slot = tuple[int, int]
"""(group, sibling)."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of a response and the prompt they follow, as bytes: equal only if bit for bit so."""

    prompt: bytes = b""
    ids: bytes = b""
    logprobs: bytes = b""
    versions: bytes = b""

    @classmethod
    def of_row(cls, row: Row) -> Tokens:
        """The response that a row holds."""
        return cls(
            prompt=row.prompt_ids.tobytes(),
            ids=row.response_ids.tobytes(),
            logprobs=row.logprobs.tobytes(),
            versions=row.weight_versions.tobytes(),
        )

    def __len__(self) -> int:
        return len(self.ids) // np.dtype(np.int32).itemsize

    def __str__(self) -> str:
        first = np.frombuffer(self.ids, np.int32)[:4]
        return f"{len(self)} tokens ({' '.join(map(str, first))} ...)" if len(self) else "no tokens"

    def plus(self, chunk: TokenChunk | None) -> Tokens:
        """These tokens, then those of `chunk`."""
        if chunk is None:
            return self
        return Tokens(
            prompt=self.prompt,
            ids=self.ids + chunk.ids.tobytes(),
            logprobs=self.logprobs + chunk.logprobs.tobytes(),
            versions=self.versions + chunk.versions.tobytes(),
        )

    def begins_with(self, other: Tokens) -> bool:
        """Whether `other` is how these tokens begin: in id, logprob and version."""
        return self.prompt == other.prompt and all(
            mine.startswith(its)
            for mine, its in (
                (self.ids, other.ids),
                (self.logprobs, other.logprobs),
                (self.versions, other.versions),
            )
        )

    def chunk(self) -> TokenChunk:
        """As arrays."""
        return TokenChunk(
            ids=np.frombuffer(self.ids, np.int32),
            logprobs=np.frombuffer(self.logprobs, np.float32),
            versions=np.frombuffer(self.versions, np.int32),
        )


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
    steps: dict[int, tuple[SeenGroup, ...]] = field(default_factory=dict)
    """Step -> what the trainer saw of its groups, in training order."""
    outcomes: dict[int, dict[str, float]] = field(default_factory=dict)
    """Step -> the metrics that were recorded."""
    received: dict[Slot, Tokens] = field(default_factory=dict)
    """Level token: what the current attempt of an unsealed sibling inherited and received, or what
    an attempt that failed has left to the next one."""
    version: int = 0

    def copy(self) -> Shadow:
        """A copy that later events do not change."""
        return Shadow(
            live={group: dict(sealed) for group, sealed in self.live.items()},
            committed=set(self.committed),
            trained=dict(self.trained),
            dropped=dict(self.dropped),
            weights=dict(self.weights),
            steps=dict(self.steps),
            outcomes=dict(self.outcomes),
            received=dict(self.received),
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
        for slot in [slot for slot in self.received if slot[0] == group]:
            del self.received[slot]

    def finish(self, step: int, groups: tuple[int, ...]) -> None:
        """An optimizer step over `groups` has happened."""
        for group in groups:
            self.settle(group)
            self.trained[group] = step
        self.version = step

    def rows_sealed(self) -> set[str]:
        """Keys of the rows that wait to be trained."""
        return {key for sealed in self.live.values() for key in sealed.values()}

    def rows_applied(self, *, above: int) -> set[str]:
        """Keys of the rows of steps `above` the version that a durable trainer checkpoint covers:
        such a step may have to be replayed."""
        steps = [groups for step, groups in self.steps.items() if above < step <= self.version]
        return {str(key) for groups in steps for group in groups for key in group.keys}

    def forget_incomplete(self, siblings: int) -> None:
        """Level prompt_group: an interrupted group has lost what it had sealed."""
        for sealed in self.live.values():
            if len(sealed) < siblings:
                sealed.clear()
