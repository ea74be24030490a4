"""The part of the auditor that judges prefixes: tokens received are neither lost nor made up (S13).

It sees requests and chunks at the engine, in the instant in which the controller receives them, and
rows at the plane. What an attempt must inherit follows from these alone. May import: `ports`,
`rows`, `testing`.
"""

from __future__ import annotations

from outlast.ports import GenerationRequest, TokenChunk
from outlast.rows import Row
from outlast.testing.fake_engine import attempt_of
from outlast.testing.law_instants import InstantLaws
from outlast.testing.law_terms import Bounds
from outlast.testing.shadow import Slot, Tokens

NOTHING = Tokens()


class PrefixLaws(InstantLaws):
    """S13: an attempt inherits exactly what its sibling had received, and a restart loses only what
    came after the cut."""

    def __init__(self, bounds: Bounds) -> None:
        super().__init__(bounds)
        self.responses: dict[Slot, Tokens] = {}
        """The newest row that was stored of each sibling."""
        self._inherited: dict[str, Tokens] = {}
        """Attempt key -> what the attempt began with."""
        self._streamed = 0
        self._frozen_streamed: dict[int, int] = {0: 0}
        """Sequence -> tokens that all attempts had received by that cut."""
        self._lengths: dict[Slot, int] = {}
        """Length of the response that each sibling had got to."""
        self._lost: dict[Slot, int] = {}
        """The same at the death of the last life, until the sibling is dispatched again."""
        self._again = self._again_max = 0

    # ------------------------------------------------------------------------- from the engine

    def requested(self, request: GenerationRequest) -> None:
        """The engine has accepted a request: it begins with what its sibling had received."""
        slot = self._current(request)
        if slot is None:
            return
        if not _first_turn(request):  # what the environment did in between is not kept
            self._forget(slot)
            return
        fresh = Tokens(prompt=request.prompt_ids.tobytes())
        kept = self.shadow.received.get(slot, NOTHING) if self.bounds.keeps_tokens else NOTHING
        expected = kept if kept.prompt == fresh.prompt else fresh
        found = fresh.plus(request.prefix)
        self.require(
            found == expected,
            f"S13: {request.id} begins with {found}; its sibling had received {expected}",
        )
        self._inherited[self._attempts[slot]] = expected
        if self.bounds.keeps_tokens:
            self.shadow.received[slot], self._lengths[slot] = expected, len(expected)
            self._check_again(slot, inherited=len(found))

    def streamed(self, request: GenerationRequest, chunk: TokenChunk) -> None:
        """The controller receives a chunk."""
        slot = self._current(request)
        if slot is None or not _first_turn(request) or slot not in self.shadow.received:
            return
        received = self.shadow.received[slot] = self.shadow.received[slot].plus(chunk)
        self._lengths[slot] = len(received)
        self._streamed += len(chunk.ids)

    def _current(self, request: GenerationRequest) -> Slot | None:
        """The sibling of a request whose attempt counts."""
        key = attempt_of(request.id)
        if key is None:  # a validation request
            return None
        slot = int(key.group), int(key.sibling)
        return slot if self._attempts.get(slot) == str(key) else None

    def _check_again(self, slot: Slot, *, inherited: int) -> None:
        """Tokens decoded again in this life are at most those received after the restored cut."""
        again = max(0, self._lost.pop(slot, 0) - inherited)
        self._again += again
        self.tally.outcomes["tokens_again"] += again
        self.require(
            self._again <= self._again_max,
            f"S13: {self._again} tokens are decoded again, though only {self._again_max} were "
            "received after the restored cut",
        )

    # -------------------------------------------------------------------------- from the plane

    def check_row(self, row: Row) -> None:
        """A row is stored: it begins with what its attempt inherited."""
        slot = int(row.key.group), int(row.key.sibling)
        if self._attempts.get(slot) != str(row.key):
            return
        found, inherited = Tokens.of_row(row), self._inherited.get(str(row.key), NOTHING)
        self.responses[slot] = found
        ours = len(inherited) > 0 and inherited.prompt == found.prompt  # else another turn's row
        self.require(
            not ours or found.begins_with(inherited),
            f"S13: row {row.key} has {found}, its attempt inherited {inherited}",
        )

    # ----------------------------------------------------------------------- lives and attempts

    def tokens_kept_by(self, sequence: int) -> None:
        """A cut is taken: what was received so far is not decoded again once it is published."""
        self._frozen_streamed[sequence] = self._streamed
        for gone in self._frozen_streamed.keys() - self._frozen.keys():
            del self._frozen_streamed[gone]

    def tokens_restored(self, sequence: int) -> None:
        """A life continues from a cut; the shadow is that of the cut already."""
        self._lost = self._lengths
        self._lengths = {slot: len(tokens) for slot, tokens in self.shadow.received.items()}
        self._again = 0
        self._again_max = self._streamed - self._frozen_streamed.get(sequence, 0)
        self._inherited.clear()

    def tokens_of_sealed(self, slot: Slot) -> None:
        """The response is in a row; nobody inherits it."""
        self.shadow.received.pop(slot, None)

    def tokens_of_failed(self, slot: Slot, key: str, *, data: bool) -> None:
        """A failed attempt leaves its tokens to the next one, unless its response was at fault."""
        if self._inherited.pop(key, None) is not None and data:
            self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        """Nothing of the sibling is inherited; it starts over on purpose."""
        self.shadow.received.pop(slot, None)
        self._lengths.pop(slot, None)


def _first_turn(request: GenerationRequest) -> bool:
    return request.id.endswith(".t1")
