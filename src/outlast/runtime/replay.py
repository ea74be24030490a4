"""Replay: re-execute the steps that lie between the restored trainer state and the restored cut.

Training only: recorded groups in their recorded order and chunks, from stored rows, no generation.
The trainer walks the same path again, so a snapshot needs no trainer checkpoint of its own step
(DESIGN 9). Laws: S1 (a replayed step is never counted as trained twice), S7, S11.
May import: `ports`, `model`, `runtime.board`, `runtime.checkpoint`, `runtime.train`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from outlast.model.groups import Group, StepRecord
from outlast.ports import Trainer
from outlast.runtime.board import Board
from outlast.runtime.checkpoint import CheckpointPump
from outlast.runtime.train import finite, train_groups
from outlast.telemetry import events

TOLERANCE = 1e-3
"""Relative difference of a replayed scalar beyond which the step is reported."""
COMPARED = ("loss", "grad_norm")


async def replay(board: Board, *, trainer: Trainer, checkpoints: CheckpointPump) -> None:
    """Bring trainer and state to the version of the restored cut; a stop request ends it early.

    A trainer checkpoint is written whenever half the bound has been replayed, and at the end, so
    lives too short to replay everything still make progress.
    """
    replayed = 0
    while board.state.steps.to_replay and board.stopping is None:
        record = board.state.steps.to_replay[0]
        began = board.world.clock.monotonic()
        with board.on_record("replay", f"the trainer to execute step {record.step} again"):
            metrics = await _execute(board, record, trainer=trainer)
        board.state.replay(metrics)
        board.world.perhaps("replay.stepped")
        replayed += 1
        board.bus.emit(
            events.StepReplayed(
                step=record.step,
                metrics=metrics,
                differences=differences(record.outcome, metrics),
                seconds=board.world.clock.monotonic() - began,
            )
        )
        if checkpoints.wanted_in_replay(replayed) or not board.state.steps.to_replay:
            checkpoints.request()
            await checkpoints.flush()
            replayed = 0


async def _execute(board: Board, record: StepRecord, *, trainer: Trainer) -> dict[str, float]:
    groups = [board.state.ledger.groups[group] for group in record.groups]
    await trainer.begin_step(record.step)
    for chunk in _chunks(groups, record.chunks):
        await trainer.accumulate(train_groups(chunk))
    outcome = await trainer.finish_step()
    return finite(outcome.metrics, bus=board.bus)


def _chunks(groups: list[Group], sizes: tuple[int, ...]) -> Iterator[list[Group]]:
    start = 0
    for size in sizes:
        yield groups[start : start + size]
        start += size


def differences(
    recorded: Mapping[str, float], found: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Compared scalars that differ beyond the tolerance: name -> (recorded, replayed)."""
    return {
        name: (recorded[name], found[name])
        for name in COMPARED
        if name in recorded
        and name in found
        and not math.isclose(recorded[name], found[name], rel_tol=TOLERANCE, abs_tol=1e-6)
    }
