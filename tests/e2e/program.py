"""`outlast` as a process, and a directory tree as a value."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from outlast.telemetry.events import AnyEvent
from outlast.testing.chaos_child import PROGRAM

SMALL = (
    "algorithm.num_prompts_per_step=4",
    "algorithm.num_generations_per_prompt=4",
    "async_rl.min_groups_for_streaming_train=2",
    "async_rl.max_inflight_prompts=8",
    "async_rl.max_buffered_rollouts=16",
    "async_rl.rollout_failure.backoff_s=0.01",
    "validation.enabled=false",
    "rollout_checkpointing.snapshot_attempt_interval_s=0.5",
)
"""The built-in demo with steps of sixteen responses."""


def outlast(
    *arguments: object, environment: Mapping[str, str] | None = None, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | dict(environment or {}),
    )


def sets(*overrides: str) -> list[str]:
    """`--set` for each override of the small demo and of `overrides`."""
    return [part for override in (*SMALL, *overrides) for part in ("--set", override)]


def tree(directory: Path) -> dict[str, str]:
    """Every entry below `directory` with a digest of its content; empty when it is missing.

    Without `lock`: even to look at a run one has to hold it, and its content only serves messages.
    """
    return {
        str(path.relative_to(directory)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "directory"
        )
        for path in sorted(directory.rglob("*"))
        if path.name != "lock"
    }


def taped(tape: Path) -> list[AnyEvent]:
    """The events of a life, in order."""
    return [msgspec.json.decode(line, type=AnyEvent) for line in tape.read_bytes().splitlines()]
