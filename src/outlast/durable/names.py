"""Names inside a run directory. Parsed by full match, compared as integers (A5).

A prefix match would take ``snapshot_1.bak`` for a snapshot and a lexical maximum would prefer
step 9 to step 10. May import: `model.ids`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from outlast.model.ids import Incarnation, Sequence, TrainerVersion

LOCK = "lock"
RUN = "run.json"
RECIPE = "recipe.yaml"
FINGERPRINT = "fingerprint.json"
STATE = "state.json.zst"
INCARNATIONS = "incarnations"
CONSUMPTION = "consumption"
SEGMENTS = "segments"
BOOTSTRAP = "bootstrap"
ANCHOR = "anchor.json"
SNAPSHOTS = "snapshots"
ROWS = "rows"
NATIVE = "native.json.zst"
NATIVE_TREE = "queue"
PREFIXES = "prefixes.arrow"
TRAINER = "trainer"
ROLLOUT_STATE = "rollout_state"
TELEMETRY = "telemetry"

TOP_LEVEL = frozenset(
    {LOCK, RUN, RECIPE, INCARNATIONS, CONSUMPTION, SEGMENTS, BOOTSTRAP, SNAPSHOTS, TELEMETRY}
)
"""Fixed entries of a run directory; the others are checkpoints and debris."""

_NUMBER = "([0-9]{6,})"
_SNAPSHOT = re.compile(f"snapshot_{_NUMBER}")
_CHECKPOINT = re.compile(f"step_{_NUMBER}")
_STALE = re.compile(f"stale_step_{_NUMBER}_i{_NUMBER}")
_DEBRIS = re.compile(r"(?:tmp|trash)_[A-Za-z0-9_.]+")
_DEBRIS_SEQUENCE = re.compile(f"(?:tmp|trash)_(?:step_[0-9]+_s)?{_NUMBER}")
_INCARNATION = re.compile(f"{_NUMBER}\\.json")
_END = re.compile(f"{_NUMBER}\\.end\\.json")
_SEGMENT = re.compile(f"seg_i{_NUMBER}_{_NUMBER}\\.arrow")


def snapshot(sequence: Sequence) -> str:
    """Live name of a snapshot."""
    return f"snapshot_{sequence:06d}"


def checkpoint(version: TrainerVersion) -> str:
    """Live name of a trainer checkpoint."""
    return f"step_{version:06d}"


def snapshot_debris(prefix: str, sequence: Sequence) -> str:
    """``tmp_`` or ``trash_`` name of a snapshot."""
    return f"{prefix}_{sequence:06d}"


def checkpoint_debris(prefix: str, version: TrainerVersion, *, sequence: Sequence) -> str:
    """``tmp_`` or ``trash_`` name of a trainer checkpoint; carries the sequence for A5."""
    return f"{prefix}_step_{version:06d}_s{sequence:06d}"


def stale(version: TrainerVersion, incarnation: Incarnation) -> str:
    """Name under which an off-lineage ``step_N`` makes room for `incarnation`'s own."""
    return f"stale_step_{version:06d}_i{incarnation:06d}"


def incarnation(number: Incarnation) -> str:
    return f"{number:06d}.json"


def incarnation_end(number: Incarnation) -> str:
    return f"{number:06d}.end.json"


def consumption_log(number: Incarnation) -> str:
    return f"inc_{number:06d}.log"


def segment(number: Incarnation, counter: int) -> str:
    return f"seg_i{number:06d}_{counter:06d}.arrow"


def _parse(pattern: re.Pattern[str], name: str) -> int | None:
    """The integer of `name`, or None unless it is exactly the name we would write."""
    match = pattern.fullmatch(name)
    if match is None:
        return None
    digits = match.group(1)
    return int(digits) if digits == f"{int(digits):06d}" else None


def parse_snapshot(name: str) -> int | None:
    return _parse(_SNAPSHOT, name)


def parse_checkpoint(name: str) -> int | None:
    return _parse(_CHECKPOINT, name)


def parse_incarnation(name: str) -> int | None:
    return _parse(_INCARNATION, name)


def parse_incarnation_end(name: str) -> int | None:
    return _parse(_END, name)


def parse_debris_sequence(name: str) -> int | None:
    """The cut sequence in a ``tmp_`` or ``trash_`` name, if it carries one."""
    return _parse(_DEBRIS_SEQUENCE, name)


def is_debris(name: str) -> bool:
    """Whether a sweep removes it."""
    return _DEBRIS.fullmatch(name) is not None


def is_stale(name: str) -> bool:
    return _STALE.fullmatch(name) is not None


def segment_incarnation(name: str) -> int:
    """Who wrote a file of ``segments/``; 0 for a name that is no segment's."""
    return _parse(_SEGMENT, name) or 0


def is_segment(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The places of a run directory."""

    run_dir: PurePosixPath

    @property
    def lock(self) -> PurePosixPath:
        return self.run_dir / LOCK

    @property
    def run(self) -> PurePosixPath:
        return self.run_dir / RUN

    @property
    def incarnations(self) -> PurePosixPath:
        return self.run_dir / INCARNATIONS

    @property
    def consumption(self) -> PurePosixPath:
        return self.run_dir / CONSUMPTION

    @property
    def segments(self) -> PurePosixPath:
        return self.run_dir / SEGMENTS

    @property
    def snapshots(self) -> PurePosixPath:
        return self.run_dir / SNAPSHOTS

    @property
    def bootstrap(self) -> PurePosixPath:
        return self.run_dir / BOOTSTRAP / ANCHOR
