"""What a run is doing: from its lock, its incarnation records, its events and its newest cut.

Disturbs nothing: the lock is probed and given back at once, and no file is created. On a copy of a
directory nobody holds the lock, so a copied live run reads as killed at the moment of the copy.
May import: `durable`, `telemetry`, `model`, `errors`, `cli`.
"""

from __future__ import annotations

import fcntl
import os
import platform
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath

import msgspec

from outlast.cli.output import FILES
from outlast.durable import names
from outlast.durable.cuts import peek_cut
from outlast.durable.lineage import lineage_cuts
from outlast.durable.lock import HEARTBEAT_FRESH_S, LockContent
from outlast.durable.manifest import IncarnationRecord, RunListing
from outlast.errors import CorruptData
from outlast.model.groups import GroupState
from outlast.telemetry.events import Gauges
from outlast.telemetry.progress import Progress
from outlast.telemetry.summary import read_progress


class RunState(StrEnum):
    """What has become of the newest incarnation."""

    RUNNING = "running"
    STOPPED = "stopped"
    """Ended by an error that it could still record."""
    PREEMPTED = "preempted"
    FINISHED = "finished"
    KILLED = "killed"
    """No end record, and nobody holds the lock."""
    EMPTY = "empty"


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast status --json`. Null where nothing on disk says it."""

    state: RunState
    reason: str | None
    """Of an orderly end: its recorded reason."""
    step: int
    """Optimizer steps done; those of a running process may not be published yet."""
    trainer_version: int
    steps_target: int | None
    buffered: int
    inflight: int
    """Responses being generated now."""
    last_snapshot: str | None
    """Newest valid cut of the lineage, of either kind."""
    last_snapshot_age_s: float | None
    last_snapshot_version: int | None
    at_risk_tokens: int | None
    """Lost if the process were killed now; 0 when none runs, null when it keeps no telemetry."""
    at_risk_s: float | None
    lost_tokens: int | None
    """Of a killed life: at risk when it last said so."""
    run: str | None
    incarnation: int | None
    restored_from: int | None
    host: str | None
    pid: int | None
    started: float | None
    recipe: str | None
    reward: float | None
    tokens_per_s: float | None
    outstanding: int
    """Groups that a restart would find unsettled, in the newest cut."""
    damaged: int
    """Cuts that cannot be used."""


def inspect_run(run: Path, listing: RunListing) -> Status:
    """Judge a run directory. Raises DiskError."""
    run_dir = PurePosixPath(run.absolute())
    newest = _newest_life(listing)
    state, reason = _state(run_dir, listing)
    told = None if newest is None else read_progress(run, newest.number)
    told = Progress() if told is None else told
    saved = _newest(run_dir, listing)
    running = state is RunState.RUNNING
    gauges = told.gauges if running else None
    version = max(told.version if running else 0, saved.version or 0)
    risk = _risk(gauges) if running else (0, 0.0)
    return Status(
        state=state,
        reason=reason,
        step=version,
        trainer_version=version,
        steps_target=told.started.steps_target if told.started else None,
        buffered=gauges.buffered_groups if gauges else saved.buffered,
        inflight=gauges.inflight_siblings if gauges else 0,
        last_snapshot=saved.name,
        last_snapshot_age_s=saved.age_s,
        last_snapshot_version=saved.version,
        at_risk_tokens=risk[0],
        at_risk_s=risk[1],
        lost_tokens=_lost(told) if state is RunState.KILLED else None,
        run=None if listing.run is None else listing.run.run,
        incarnation=None if newest is None else newest.number,
        restored_from=None if newest is None else newest.restored_from,
        host=None if newest is None else newest.host,
        pid=None if newest is None else newest.pid,
        started=None if newest is None else newest.started,
        recipe=told.started.recipe if told.started else None,
        reward=told.rewards[-1] if told.rewards else None,
        tokens_per_s=gauges.tokens_per_s if gauges else None,
        outstanding=saved.outstanding,
        damaged=sum(found.manifest is None for found in listing.cuts),
    )


def _risk(gauges: Gauges | None) -> tuple[int | None, float | None]:
    return (None, None) if gauges is None else (gauges.at_risk_tokens, gauges.at_risk_s)


def _lost(told: Progress) -> int | None:
    """What the kill cost, unless something was published after the last gauges."""
    if told.gauges is None or told.gauges_wall is None:
        return None
    stale = told.saved_wall is not None and told.saved_wall > told.gauges_wall
    return None if stale else told.gauges.at_risk_tokens


# --------------------------------------------------------------------------------------- state


def _newest_life(listing: RunListing) -> IncarnationRecord | None:
    return listing.incarnations[-1] if listing.incarnations else None


def _state(run_dir: PurePosixPath, listing: RunListing) -> tuple[RunState, str | None]:
    if _held(run_dir, listing):
        return RunState.RUNNING, None
    newest = _newest_life(listing)
    if newest is None:
        return RunState.EMPTY, None
    end = next((end for end in listing.ends if end.number == newest.number), None)
    if end is None:
        return RunState.KILLED, None
    orderly = {RunState.FINISHED.value, RunState.PREEMPTED.value}
    return RunState(end.reason) if end.reason in orderly else RunState.STOPPED, end.reason


def _held(run_dir: PurePosixPath, listing: RunListing) -> bool:
    """Whether a controller owns the directory: by flock here, by a fresh heartbeat elsewhere."""
    path = names.RunPaths(run_dir).lock
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        # Shared and not waiting: it cannot break into a held lock, and is gone a moment later.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return _beats_elsewhere(path, listing)


def _beats_elsewhere(path: PurePosixPath, listing: RunListing) -> bool:
    try:
        content = msgspec.json.decode(FILES.read(path), type=LockContent)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    ended = {end.number for end in listing.ends}
    elsewhere = content.host != (platform.node() or "localhost")
    fresh = abs(time.time() - content.heartbeat) < HEARTBEAT_FRESH_S
    return elsewhere and fresh and content.incarnation not in ended


# ---------------------------------------------------------------------------------- newest cut


@dataclass(frozen=True, slots=True)
class _Saved:
    """The newest cut of the lineage that can be read."""

    name: str | None = None
    version: int | None = None
    age_s: float | None = None
    buffered: int = 0
    outstanding: int = 0


def _newest(run_dir: PurePosixPath, listing: RunListing) -> _Saved:
    for found in reversed(lineage_cuts(listing)):
        try:
            cut = peek_cut(FILES, run_dir, found=found)
        except CorruptData:
            continue
        assert found.manifest is not None
        return _Saved(
            name=found.path.name,
            version=cut.trainer_version,
            age_s=max(0.0, time.time() - found.manifest.created),
            buffered=cut.counts()[GroupState.BUFFERED],
            outstanding=len(cut.groups) + len(cut.reserve),
        )
    return _Saved()
