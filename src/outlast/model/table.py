"""The transition table of prompt groups: (state, event) -> target states, or a named refusal.

This is the only place that says what may happen to a group; `docs/architecture.md` prints it, and
a test walks every cell. Two targets mean that the event's argument decides (reopen: whether the
restored trainer state covers the step). May import: `groups`.
"""

from __future__ import annotations

from enum import StrEnum

from outlast.model.groups import GroupState as S


class Event(StrEnum):
    """Everything that can happen to a group."""

    ADMIT = "admit"
    DISPATCH = "dispatch"
    SEAL = "seal"
    FAIL = "fail"
    SUPERSEDE = "supersede"
    COMPLETE = "complete"
    FILTER = "filter"
    COMMIT = "commit"
    CLAIM = "claim"
    UNCLAIM = "unclaim"
    APPLY = "apply"
    DURABLE = "durable"
    EVICT = "evict"
    ABORT = "abort"
    PROMOTE = "promote"
    GIVE_UP = "give_up"
    EXPIRE = "expire"
    REOPEN = "reopen"


class Refusal(StrEnum):
    """Why a cell of the table is empty; the text is part of the error message."""

    UNKNOWN = "no group of this id is unsettled"
    TWICE = "a group is admitted once"
    NOT_OPEN = "only an open group changes its siblings"
    NOT_COMPLETE = "group work needs a complete group"
    NOT_BUFFERED = "only a buffered group is selectable or evictable"
    NOT_CLAIMED = "only a group claimed by a step returns to the buffer"
    NOT_TRAINING = "only a claimed or replayed group takes part in a step"
    NOT_APPLIED = "only an applied group becomes durable"
    TOO_LATE = "the group has left the part of its life in which this is possible"
    SETTLED = "a settled group never changes again"


_STATES = tuple(S)
_OPEN = (S.OPEN,)

_ROWS: dict[Event, tuple[dict[S | None, tuple[S, ...]], Refusal]] = {
    Event.ADMIT: ({None: _OPEN}, Refusal.TWICE),
    Event.DISPATCH: ({S.OPEN: _OPEN}, Refusal.NOT_OPEN),
    Event.SEAL: ({S.OPEN: _OPEN}, Refusal.NOT_OPEN),
    Event.FAIL: ({S.OPEN: _OPEN}, Refusal.NOT_OPEN),
    Event.SUPERSEDE: ({S.OPEN: _OPEN}, Refusal.NOT_OPEN),
    Event.COMPLETE: ({S.OPEN: (S.COMPLETE,)}, Refusal.NOT_OPEN),
    Event.FILTER: ({S.COMPLETE: (S.DROPPED,)}, Refusal.NOT_COMPLETE),
    Event.COMMIT: ({S.COMPLETE: (S.BUFFERED,)}, Refusal.NOT_COMPLETE),
    Event.CLAIM: ({S.BUFFERED: (S.CLAIMED,)}, Refusal.NOT_BUFFERED),
    Event.UNCLAIM: ({S.CLAIMED: (S.BUFFERED,)}, Refusal.NOT_CLAIMED),
    Event.APPLY: ({S.CLAIMED: (S.APPLIED,), S.REPLAY: (S.APPLIED,)}, Refusal.NOT_TRAINING),
    Event.DURABLE: ({S.APPLIED: (S.TRAINED,)}, Refusal.NOT_APPLIED),
    Event.EVICT: ({S.BUFFERED: (S.DROPPED,)}, Refusal.NOT_BUFFERED),
    Event.ABORT: ({S.OPEN: (S.DROPPED,), S.COMPLETE: (S.DROPPED,)}, Refusal.TOO_LATE),
    Event.PROMOTE: (
        {S.OPEN: _OPEN, S.COMPLETE: (S.COMPLETE,), S.BUFFERED: (S.BUFFERED,)},
        Refusal.TOO_LATE,
    ),
    Event.GIVE_UP: ({S.OPEN: (S.DROPPED,)}, Refusal.NOT_OPEN),
    Event.EXPIRE: ({S.BUFFERED: (S.DROPPED,)}, Refusal.NOT_BUFFERED),
    Event.REOPEN: (
        {
            S.OPEN: _OPEN,
            S.COMPLETE: (S.COMPLETE,),
            S.BUFFERED: (S.BUFFERED,),
            S.CLAIMED: (S.BUFFERED,),
            S.APPLIED: (S.TRAINED, S.REPLAY),
            S.REPLAY: (S.TRAINED, S.REPLAY),
        },
        Refusal.SETTLED,
    ),
}


def targets(state: S | None, event: Event) -> tuple[S, ...] | Refusal:
    """States that `event` may lead to from `state` (None: not in the ledger), or why none."""
    allowed, refusal = _ROWS[event]
    if state in allowed:
        return allowed[state]
    if state is None:
        return Refusal.UNKNOWN
    if state in (S.TRAINED, S.DROPPED):
        return Refusal.SETTLED
    return refusal


def as_markdown() -> str:
    """The whole table for the documentation: one line per event, one column per state."""
    columns: tuple[S | None, ...] = (None, *_STATES)
    names = ["-" if state is None else state.value for state in columns]
    lines = ["| event | " + " | ".join(names) + " |", "|---" * (len(columns) + 1) + "|"]
    for event in Event:
        cells = [_cell(targets(state, event)) for state in columns]
        lines.append(f"| `{event}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: tuple[S, ...] | Refusal) -> str:
    return "·" if isinstance(found, Refusal) else " or ".join(state.value for state in found)
