"""The sentences of `train`: the restore report, the line of a step, notes, and the end.

Every sentence comes from one event (house rule 9). Plain text: the live display and the pipe print
the same words. May import: `telemetry`, `cli.format`.
"""

from __future__ import annotations

from outlast.cli import format as fmt
from outlast.telemetry import events
from outlast.telemetry.events import AnyEvent, SkipReason
from outlast.telemetry.progress import Progress, StepView

QUIET_SKIPS = frozenset({SkipReason.NO_MUTATIONS, SkipReason.MISSING_TRAINER_ANCHOR})
"""Skips that belong to a healthy run."""


def start_line(event: events.RunStarted) -> str:
    """What runs, where, and how far it should go."""
    return (
        f"{event.recipe}: run {event.run}, incarnation {event.incarnation}, "
        f"{fmt.plural(event.steps_target, 'step')}, in {event.run_dir}"
    )


def restore_report(event: events.Restored) -> str:
    """The report of DESIGN 12, for people."""
    rows = [("kept", _kept(event)), ("again", _again(event)), ("trainer", _trainer(event))]
    rows += [("not used", "\n".join(f"{cut}: {why}" for cut, why in event.rejected))]
    loaded = f"in {fmt.duration(event.load_s)}, every byte verified"
    rows += [("loaded", loaded)]
    return f"{_source(event)}\n{fmt.table([row for row in rows if row[1]])}"


def _source(event: events.Restored) -> str:
    if event.snapshot is None:
        return f"resumed from {event.anchor}; no rollout state was restored"
    age = "" if event.age_s is None else f", taken {fmt.duration(event.age_s)} ago"
    inside = "" if event.snapshot == event.anchor else f" on trainer state {event.anchor}"
    return f"resumed from {event.snapshot}{inside}{age}"


def _kept(event: events.Restored) -> str:
    if not event.siblings_reused and not event.prefix_tokens_reused:
        return "no finished response stood in it"
    text = (
        f"{fmt.plural(event.siblings_reused, 'finished response')}, "
        f"{fmt.count(event.tokens_reused)} tokens, "
        f"{fmt.plural(event.groups_reused, 'whole group')}"
    )
    if event.prefix_tokens_reused:
        text += f"\n{fmt.count(event.prefix_tokens_reused)} tokens of unfinished responses"
    if event.estimated_saved_s > 0:
        text += f"\nabout {fmt.duration(event.estimated_saved_s)} of generation saved"
    return text


def _again(event: events.Restored) -> str:
    if not event.siblings_redispatched and not event.attempts_superseded:
        return ""
    text = f"{fmt.plural(event.siblings_redispatched, 'response')} to generate"
    if event.attempts_superseded:
        text += f" ({event.attempts_superseded:,} were cut off)"
    return text


def _trainer(event: events.Restored) -> str:
    text = f"version {event.trainer_version}"
    if event.steps_to_replay:
        text += f", {fmt.plural(event.steps_to_replay, 'step')} to replay from stored rows"
    return text


def step_line(step: StepView, progress: Progress, *, now: float) -> str:
    """One line per step, for pipes and logs."""
    target = f"/{progress.started.steps_target}" if progress.started else ""
    reward = "-" if step.reward is None else f"{step.reward:.3f}"
    parts = [
        f"step {step.step}{target}",
        f"reward {reward}",
        f"{fmt.count(step.tokens_per_s)} tok/s",
        f"staleness {step.lag_mean:.1f} (max {step.lag_max})",
        f"train {fmt.duration(step.train_s)} + wait {fmt.duration(step.wait_s)}",
    ]
    if progress.saved_wall is not None:
        parts.append(f"saved {fmt.duration(max(0.0, now - progress.saved_wall))} ago")
    if progress.gauges is not None:
        parts.append(f"a kill costs {cost(progress.gauges)}")
    return "  ".join(parts)


def cost(gauges: events.Gauges) -> str:
    """What a kill at that moment would lose of generation; a step may have to be trained again."""
    if not gauges.at_risk_tokens:
        return "no tokens"
    return f"{fmt.count(gauges.at_risk_tokens)} tokens, {fmt.duration(gauges.at_risk_s)}"


def note(event: AnyEvent) -> str | None:
    """A line for the list of recent events; None for what the gauges show anyway."""
    match event:
        case events.CheckpointPublished():
            seconds = event.stage_s + event.write_s + event.commit_s
            return f"step_{event.version} saved: {fmt.size(event.bytes)}, {fmt.duration(seconds)}"
        case events.SnapshotPublished():
            kind = "last snapshot" if event.final else "snapshot"
            return (
                f"{kind} {event.sequence}: {fmt.plural(event.rows, 'row')}, "
                f"{fmt.size(event.bytes_written)} new, loop held {1e3 * event.hold_s:.1f} ms"
            )
        case events.IntervalChosen():
            return (
                f"a snapshot costs {fmt.duration(event.cost_s)}: from now on one every "
                f"{fmt.duration(event.interval_s)}"
            )
        case events.StepReplayed() if not event.differences:
            return f"step {event.step} replayed in {fmt.duration(event.seconds)}"
        case events.ValidationFinished():
            return f"validation at version {event.version}: reward {event.reward:.3f}"
        case _:
            return trouble(event)


def trouble(event: AnyEvent) -> str | None:
    """A line for what somebody should know even in a log file."""
    match event:
        case events.SnapshotSkipped() if event.reason not in QUIET_SKIPS:
            detail = f": {event.detail}" if event.detail else ""
            return f"snapshot skipped ({event.reason}){detail}"
        case events.StepReplayed() if event.differences:
            told = (f"{k} {was:.6g} → {now:.6g}" for k, (was, now) in event.differences.items())
            return f"step {event.step} replayed with another outcome: {', '.join(told)}"
        case events.Stalled():
            waits = "; ".join(f"{who} waits for {what}" for who, what in event.waiting)
            return f"no progress for {fmt.duration(event.seconds)}: {waits or 'nobody waits'}"
        case events.AttemptFailed():
            return f"attempt {event.key} failed ({event.kind}): {event.cause}"
        case events.GroupDropped() if event.reason == "gave_up":
            lent = "" if event.lent is None else f"; finished group {event.lent} takes its place"
            return f"group {event.group} given up{lent}"
        case events.Warned():
            return f"warning: {event.message}"
        case _:
            return None


def end_line(progress: Progress, *, now: float) -> str:
    """How the run ended, where it stands and what it has saved."""
    ended = progress.ended
    if ended is None:
        return "ended without a word: the last published snapshot stands"
    reason = ended.reason.replace("_", " ")
    parts = [f"{reason} at step {ended.trainer_version}"]
    rewards = list(progress.rewards)
    if len(rewards) >= 2:
        tenth = max(1, len(rewards) // 10)
        first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
        parts.append(f"reward {first:.3f} → {last:.3f}")
    if progress.started_wall is not None:
        parts.append(f"{fmt.duration(max(0.0, now - progress.started_wall))} in this life")
    parts.append(f"last cut {ended.last_cut}" if ended.last_cut else "nothing was published")
    return " · ".join(parts)
