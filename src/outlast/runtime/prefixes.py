"""Prefixes: tokens that an attempt has received, kept so that they are never decoded again.

A prefix passes from an attempt to the next one of the same sibling, live (a failed or re-routed
request) and across restarts (DESIGN 8). The guarantee: the recorded prefix is token-exact, with the
logprob and version under which each token was really sampled; the suffix is a fresh sample.
Only the first generation of a rollout is kept: what an environment did after it is not recorded.
May import: `ports`, `rows`, `model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from outlast.model.cut import PrefixRef
from outlast.model.ids import AttemptKey, GroupId, SiblingIndex, TrainerVersion
from outlast.ports import TokenChunk
from outlast.rows import Int32, Row


@dataclass(slots=True)
class Prefix:
    """Append-only chunks of one attempt's first generation, and the prompt they follow."""

    prompt_ids: Int32 | None = None
    chunks: list[TokenChunk] = field(default_factory=list)
    tokens: int = 0
    saved: int = 0
    """Of the tokens, how many the newest published cut holds."""

    def append(self, chunk: TokenChunk) -> None:
        if len(chunk.ids):
            self.chunks.append(chunk)
            self.tokens += len(chunk.ids)

    @property
    def version(self) -> TrainerVersion | None:
        """The oldest version of its tokens; None while it has none."""
        oldest = min((int(chunk.versions.min()) for chunk in self.chunks), default=None)
        return None if oldest is None else TrainerVersion(oldest)

    def joined(self) -> TokenChunk | None:
        """All tokens as one chunk; None while there are none."""
        if not self.chunks:
            return None
        return TokenChunk(
            ids=np.concatenate([chunk.ids for chunk in self.chunks]),
            logprobs=np.concatenate([chunk.logprobs for chunk in self.chunks]),
            versions=np.concatenate([chunk.versions for chunk in self.chunks]),
        )

    def row(self, key: AttemptKey) -> Row:
        """As it is saved: a row that has no reward yet."""
        joined = self.joined()
        assert joined is not None and self.prompt_ids is not None
        return Row(
            key=key,
            prompt_ids=self.prompt_ids,
            response_ids=joined.ids,
            logprobs=joined.logprobs,
            weight_versions=joined.versions,
            loss_mask=np.ones(len(joined.ids), dtype=np.bool_),
            reward=0.0,
            mask_sample=True,
        )


@dataclass(frozen=True, slots=True)
class FrozenPrefix:
    """A prefix at one instant: pointer copies, since arrays are never changed."""

    live: Prefix
    image: Prefix

    @classmethod
    def of(cls, live: Prefix) -> FrozenPrefix:
        image = Prefix(prompt_ids=live.prompt_ids, chunks=list(live.chunks), tokens=live.tokens)
        return cls(live=live, image=image)

    def published(self) -> None:
        """A cut that holds the image was acknowledged."""
        self.live.saved = self.image.tokens


Frozen = Mapping[AttemptKey, FrozenPrefix]
"""All prefixes of one cut, by the key of the attempt they belong to."""


def prefix_refs(prefixes: Frozen) -> tuple[PrefixRef, ...]:
    """How a cut names `prefixes`."""
    return tuple(PrefixRef(key=key, tokens=prefixes[key].image.tokens) for key in sorted(prefixes))


def prefix_rows(prefixes: Frozen) -> tuple[Row, ...]:
    """What is saved of `prefixes`; called off the event loop."""
    return tuple(prefixes[key].image.row(key) for key in sorted(prefixes))


class PrefixBook:
    """Prefixes that wait for the next attempt of their sibling."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._waiting: dict[tuple[GroupId, SiblingIndex], Prefix] = {}
        for row in rows:
            prefix = Prefix(prompt_ids=row.prompt_ids)
            prefix.append(
                TokenChunk(
                    ids=row.response_ids, logprobs=row.logprobs, versions=row.weight_versions
                )
            )
            prefix.saved = prefix.tokens
            self._waiting[row.key.group, row.key.sibling] = prefix

    def take(self, group: GroupId, sibling: SiblingIndex) -> Prefix:
        """What the next attempt of the sibling starts from; empty when nothing was kept."""
        return self._waiting.pop((group, sibling), None) or Prefix()

    def leave(self, key: AttemptKey, prefix: Prefix) -> None:
        """The attempt ended without a row; its tokens pass on."""
        if prefix.tokens:
            self._waiting[key.group, key.sibling] = prefix

    def forget(self, group: GroupId) -> None:
        """The group is settled."""
        for name in [name for name in self._waiting if name[0] == group]:
            del self._waiting[name]

    def waiting(self) -> tuple[tuple[tuple[GroupId, SiblingIndex], Prefix], ...]:
        """Every prefix that waits, by sibling."""
        return tuple(self._waiting.items())
