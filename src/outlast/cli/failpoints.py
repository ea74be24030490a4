"""Failpoints: make the real program die, stop or run out of disk at a named place.

``OUTLAST_FAILPOINT=snapshot.after_rename:kill`` or, for the third hit and every later one,
``snapshot.after_rows:disk_full:3+``; several are separated by commas. Without the variable a mark
costs a call of an empty function. Every mark in the code stands in `FAILPOINTS`, and the other way
round (tests/cli/test_failpoints.py). May import: `errors`, `world`.
"""

from __future__ import annotations

import difflib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from outlast.errors import DiskError, DiskFull, RecipeError
from outlast.world import Perhaps, no_mark

VARIABLE = "OUTLAST_FAILPOINT"

_PUBLISHING = {
    "after_manifest": "MANIFEST.json is written and synced, COMMITTED is not",
    "after_marker": "COMMITTED is written and synced under the tmp_ name",
    "before_rename": "the tree is whole and synced, still under its tmp_ name",
    "after_rename": "the live name stands, its parent directory is not yet synced",
}

FAILPOINTS: Mapping[str, str] = {
    "start.planned": "locked; the plan is made and its cut verified; nothing is loaded",
    "start.loaded": "rows are loaded; the last moment before adoption",
    "start.adopted": "the incarnation has its number; debris is not swept, no identity written",
    "start.swept": "debris is swept and identities are written; nothing runs yet",
    "start.trainer_loaded": "engine fenced and trainer loaded; no weights pushed",
    "replay.stepped": "a step of an earlier life is executed again from stored rows",
    "start.ready": "weights acknowledged and restore reported; nothing dispatched yet",
    "rollout.admitted": "prompts are drawn and owned by their groups; nothing dispatched",
    "rollout.before_seal": "a row stands in the plane, its sibling is not sealed",
    "rollout.after_seal": "a sibling is sealed",
    "rollout.before_complete": "all siblings of a group are sealed, group work is pending",
    "rollout.committed": "a group is buffered",
    "train.after_claim": "groups are claimed for the open step",
    "train.accumulated": "a chunk of the open step is in the gradients",
    "train.before_finish": "the step has all its groups; the optimizer has not stepped",
    "train.after_finish": "the optimizer has stepped; no record says so",
    "train.applied": "the step is applied and its bundled cut taken; nothing is durable",
    "weights.before_push": "the engine still serves the version before",
    "weights.pushed": "the engine has acknowledged, admission does not know it yet",
    "checkpoint.staged": "the trainer's copy is staged, its tree not yet opened",
    "checkpoint.written": "the trainer's shards are written under the tmp_ name",
    "checkpoint.published": "step_N is durable; its groups still count as applied",
    **{f"checkpoint.{name}": f"step_N: {what}" for name, what in _PUBLISHING.items()},
    "snapshot.cut": "the cut is taken, its tree not yet opened",
    "snapshot.rows_saved": "the rows are linked or written under the tmp_ name",
    **{f"snapshot.{name}": f"snapshot: {what}" for name, what in _PUBLISHING.items()},
    "log.synced": "the consumption log is durable up to a cut that is not yet committed",
    "retain.after_rename": "a victim of retention has its trash_ name and all its files",
    "stop.drained": "the pumps have come to rest after a stop request or at the target",
    "stop.saved": "the last cut is published; the end of the life is not recorded",
}
"""Every named place, and what holds there."""

ACTIONS = ("kill", "term", "stop", "disk_full", "disk_error")
"""SIGKILL, SIGTERM or SIGSTOP to the own process; or the error of a full or failing disk."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """One action at one place: at hit `first` (from 1), and later ones too if `every`."""

    name: str
    action: str
    first: int = 1
    every: bool = False

    def due(self, hit: int) -> bool:
        return hit >= self.first if self.every else hit == self.first

    def __str__(self) -> str:
        return f"{self.name}:{self.action}:{self.first}{'+' if self.every else ''}"


def parse(text: str) -> tuple[Failpoint, ...]:
    """``name:action[:count[+]]``, comma-separated. Raises RecipeError naming what is wrong."""
    return tuple(_parse_one(part.strip()) for part in text.split(",") if part.strip())


def _parse_one(part: str) -> Failpoint:
    name, _, rest = part.partition(":")
    action, _, count = rest.partition(":")
    if name not in FAILPOINTS:
        near = difflib.get_close_matches(name, FAILPOINTS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        known = "\n  ".join(FAILPOINTS)
        raise RecipeError(f"{VARIABLE}: there is no failpoint {name!r}{meant} Known are\n  {known}")
    if action not in ACTIONS:
        raise RecipeError(
            f"{VARIABLE}: {part!r} has action {action!r}; required: one of {', '.join(ACTIONS)}"
        )
    digits = count.removesuffix("+")
    if count and not (digits.isdigit() and int(digits) > 0):
        raise RecipeError(f"{VARIABLE}: {part!r} has count {count!r}; required: 3, or 3+, from 1")
    return Failpoint(name, action, int(digits) if digits else 1, count.endswith("+"))


class Failpoints:
    """`Perhaps` that counts its hits and acts. Marks are hit on any thread."""

    def __init__(self, points: tuple[Failpoint, ...]) -> None:
        self._points = {point.name: point for point in points}
        self._hits: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, name: str, /) -> None:
        point = self._points.get(name)
        if point is None:
            return
        with self._lock:
            self._hits[name] += 1
            hit = self._hits[name]
        if point.due(hit):
            _ACT[point.action](name)


def from_environment(environment: Mapping[str, str] = os.environ) -> Perhaps:
    """The production `Perhaps`: a no-op unless the variable is set."""
    text = environment.get(VARIABLE, "")
    return Failpoints(parse(text)) if text else no_mark


def _signalled(number: signal.Signals) -> Callable[[str], None]:
    def act(_: str) -> None:
        os.kill(os.getpid(), number)

    return act


def _disk_full(name: str) -> None:
    raise DiskFull(f"failpoint {name}: no space left (asked for by {VARIABLE})")


def _disk_error(name: str) -> None:
    raise DiskError(f"failpoint {name}: input/output error (asked for by {VARIABLE})")


_ACT: Mapping[str, Callable[[str], None]] = {
    "kill": _signalled(signal.SIGKILL),
    "term": _signalled(signal.SIGTERM),
    "stop": _signalled(signal.SIGSTOP),
    "disk_full": _disk_full,
    "disk_error": _disk_error,
}
