"""Events with plausible numbers, for tests of the views."""

from __future__ import annotations

from outlast.telemetry import events
from outlast.telemetry.events import AnyEvent, SkipReason


def started(incarnation: int = 1) -> events.RunStarted:
    return events.RunStarted(
        run="a1b2c3",
        incarnation=incarnation,
        run_dir="runs/tiny",
        recipe="builtin:tiny, tiny, windowed",
        steps_target=60,
    )


def restored(*, snapshot: str | None = "snapshot_000007") -> events.Restored:
    return events.Restored(
        anchor="step_12",
        snapshot=snapshot,
        sequence=7,
        age_s=4.2,
        trainer_version=12,
        steps_to_replay=2,
        groups_reused=31,
        siblings_reused=402,
        tokens_reused=48_213,
        prefix_tokens_reused=1_900,
        attempts_superseded=96,
        siblings_redispatched=96,
        rejected=(("snapshot_000008", "corrupt: state.json has another digest"),),
        load_s=0.31,
        estimated_saved_s=62.0,
    )


def sealed(key: str = "g1.s0.i1.n0", tokens: int = 100) -> events.SiblingSealed:
    return events.SiblingSealed(key=key, tokens=tokens, reward=1.0, versions=(11, 12), seconds=0.5)


def committed(group: int, reward: float) -> events.GroupCommitted:
    return events.GroupCommitted(group=group, reward_mean=reward, tokens=800)


def step(number: int, *, groups: tuple[int, ...] = (1, 2)) -> events.StepFinished:
    return events.StepFinished(
        step=number,
        groups=groups,
        chunks=(1, 1),
        metrics={"loss": -0.01, "grad_norm": 0.5},
        lags=(0, 1),
        wait_s=0.5,
        train_s=1.5,
    )


def replayed(number: int, **differences: tuple[float, float]) -> events.StepReplayed:
    return events.StepReplayed(
        step=number, metrics={"loss": -0.01}, differences=differences, seconds=0.8
    )


def published(sequence: int = 8) -> events.SnapshotPublished:
    return events.SnapshotPublished(
        id=f"snapshot_{sequence:06d}",
        sequence=sequence,
        trainer_version=13,
        bytes_written=120_000,
        bytes_total=900_000,
        groups=40,
        rows=512,
        hold_s=0.001,
        save_s=0.030,
        commit_s=0.009,
        final=False,
    )


def skipped(reason: SkipReason = SkipReason.DISK_FULL) -> events.SnapshotSkipped:
    return events.SnapshotSkipped(reason=reason, detail="no space left")


def gauges(version: int = 13) -> events.Gauges:
    return events.Gauges(
        trainer_version=version,
        served_version=version - 1,
        open_groups=20,
        buffered_groups=30,
        claimed_groups=8,
        inflight_siblings=256,
        tokens_per_s=18_400.0,
        last_snapshot_age_s=3.0,
        at_risk_tokens=12_345,
        at_risk_s=1.5,
    )


def checkpoint(version: int = 13) -> events.CheckpointPublished:
    return events.CheckpointPublished(
        version=version, sequence=9, bytes=2_700_000, stage_s=0.01, write_s=0.05, commit_s=0.02
    )


def validation(version: int = 13) -> events.ValidationFinished:
    return events.ValidationFinished(
        version=version, reward=0.61, prompts=64, seconds=2.0, response_tokens_mean=9.5
    )


def one_of_each() -> tuple[AnyEvent, ...]:
    """Every case of the closed union."""
    return (
        started(),
        restored(),
        events.GroupsAdmitted(groups=(1, 2), target_step=None),
        events.AttemptDispatched(key="g1.s0.i1.n0", version=12, prefix_tokens=0),
        sealed(),
        events.AttemptFailed(key="g1.s1.i1.n0", kind="infrastructure", cause="time-out"),
        events.ResultIgnored(key="g1.s1.i1.n0", verdict="late"),
        committed(1, 0.5),
        events.GroupDropped(group=9, reason="stale"),
        replayed(12),
        step(13),
        events.WeightsServed(version=13, seconds=0.05),
        checkpoint(),
        published(),
        skipped(),
        validation(),
        gauges(),
        events.IntervalChosen(interval_s=12.0, cost_s=0.02),
        events.Stalled(seconds=10.0, waiting=(("train", "buffered groups"),)),
        events.Warned(message="keep_latest_k is 1"),
        events.RunEnded(reason="preempted", trainer_version=13, last_cut="snapshot_000008"),
    )
