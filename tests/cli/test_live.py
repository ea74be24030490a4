"""What `train` shows: on a terminal, in a pipe, as JSON. Rendered to text and read."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console

from outlast.cli import report
from outlast.cli.live import JsonLines, LiveDisplay, PlainLines, open_display
from outlast.telemetry import events
from outlast.telemetry.events import AnyEvent, SkipReason
from tests.telemetry import samples

ENDED = events.RunEnded(reason="finished", trainer_version=13, last_cut="step_000013")


def rendered(*stream: AnyEvent, width: int = 100) -> tuple[str, str]:
    """(the panel, what was printed above it) after the events."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    display = LiveDisplay(console, clock=lambda: 1_000_002.3)
    for event in stream:
        display(event, 1_000_000.0)
    above = out.getvalue()
    out.truncate(0)
    out.seek(0)
    console.print(display)
    return out.getvalue(), above


def run() -> tuple[AnyEvent, ...]:
    return (
        samples.started(3),
        samples.committed(1, 0.25),
        samples.committed(2, 0.75),
        samples.sealed(tokens=37_000),
        samples.step(12),
        samples.committed(3, 0.9),
        samples.step(13, groups=(3,)),
        samples.gauges(13),
        samples.published(8),
    )


def test_the_panel_says_what_a_kill_would_cost() -> None:
    panel, _ = rendered(*run())
    assert "kill now  would cost 12.3 k tokens, 1.5 s" in panel
    assert "saved     2.3 s ago · snapshot_000008" in panel
    assert "step      13 of 60" in panel
    assert "0.900       ▁█" in panel
    assert "256 in flight for 20 groups · 30 buffered · 8 in training" in panel
    assert "run a1b2c3 · incarnation 3" in panel


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_panel_fits_every_width(width: int) -> None:
    panel, _ = rendered(*run(), samples.skipped(), samples.validation(), width=width)
    assert all(len(line) <= width for line in panel.splitlines())
    assert 10 <= len(panel.splitlines()) <= 16


def test_saves_do_not_push_trouble_out_of_sight() -> None:
    panel, _ = rendered(
        samples.started(), samples.skipped(), *(samples.checkpoint(v) for v in range(20))
    )
    assert "snapshot skipped (disk_full): no space left" in panel
    assert panel.count(" saved: ") == 1 and "step_19 saved" in panel


def test_skipped_snapshots_are_counted_beside_the_age_of_the_last() -> None:
    waiting = samples.skipped(SkipReason.MISSING_TRAINER_ANCHOR)
    idle = samples.skipped(SkipReason.NO_MUTATIONS)
    panel, _ = rendered(samples.started(), samples.published(), idle, waiting, waiting)
    assert "snapshot_000008 · since then 2 skipped: missing_trainer_anchor" in panel
    assert "no_mutations" not in panel
    panel, _ = rendered(samples.started(), waiting, samples.published())
    assert "skipped" not in panel


def test_the_newest_cut_is_named_whatever_its_kind() -> None:
    panel, _ = rendered(samples.started(), samples.published(8), samples.checkpoint(14))
    assert "ago · step_14" in panel


def test_the_restore_report_and_the_end_stay_on_the_screen() -> None:
    panel, above = rendered(samples.started(), samples.restored(), *run()[1:], ENDED)
    assert "resumed from snapshot_000007 on trainer state step_12, taken 4.2 s ago" in above
    assert "402 finished responses, 48.2 k tokens, 31 whole groups" in above
    assert "1.9 k tokens of unfinished responses" in above
    assert "96 responses to generate (96 were cut off)" in above
    assert "2 steps to replay from stored rows" in above
    assert "snapshot_000008: corrupt: state.json has another digest" in above
    assert "finished at step 13 · reward 0.500 → 0.900" in panel.splitlines()[-1]
    assert "kill now" not in panel


def test_before_the_run_starts_there_is_one_quiet_line() -> None:
    panel, _ = rendered()
    assert panel.strip() == "outlast  looking at what stands on disk"
    nothing = events.RunEnded(reason="nothing_to_do", trainer_version=60, last_cut=None)
    panel, above = rendered(nothing)
    assert panel.strip() == "" and above == ""


def test_a_resumed_life_says_what_stands_until_it_saves() -> None:
    panel, _ = rendered(samples.started(2))
    assert panel.splitlines()[-1].strip() == "loading"
    panel, _ = rendered(samples.started(2), samples.restored())
    assert "step      12 of 60" in panel
    assert "nothing yet in this life; snapshot_000007 stands" in panel


def plain(*stream: AnyEvent) -> list[str]:
    out = io.StringIO()
    display = PlainLines(out)
    for second, event in enumerate(stream):
        display(event, 100.0 + second)
    return out.getvalue().splitlines()


def test_a_pipe_gets_one_line_per_step() -> None:
    lines = plain(*run(), samples.step(14), ENDED)
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 3
    assert steps[0].startswith("step 12/60  reward 0.500  18.5 k tok/s  staleness 0.5 (max 1)")
    assert steps[-1].endswith("saved 1.0 s ago  a kill costs 12.3 k tokens, 1.5 s")
    assert lines[0].endswith("run a1b2c3, incarnation 3, 60 steps, in runs/tiny")
    assert lines[-1].startswith("finished at step 13")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (events.Warned(message="m"), "warning: m"),
        (samples.replayed(12), "step 12 replayed in 800 ms"),
        (samples.replayed(12, loss=(0.5, 0.25)), "another outcome: loss 0.5 → 0.25"),
        (events.Stalled(seconds=12, waiting=(("train", "groups"),)), "train waits for groups"),
        (events.AttemptFailed(key="k", kind="data", cause="c"), "attempt k failed (data): c"),
        (events.GroupDropped(group=4, reason="gave_up"), "group 4 given up"),
        (
            events.GroupDropped(group=4, reason="gave_up", lent=9),
            "group 4 given up; finished group 9 takes its place",
        ),
        (samples.skipped(SkipReason.SAVE_FAILED), "snapshot skipped (save_failed)"),
    ],
)
def test_a_pipe_hears_of_trouble(event: AnyEvent, text: str) -> None:
    (line,) = plain(event)
    assert text in line


def test_a_pipe_is_not_told_of_healthy_skips() -> None:
    assert plain(samples.skipped(SkipReason.NO_MUTATIONS), samples.checkpoint()) == []


def test_json_lines_are_the_noteworthy_events() -> None:
    out = io.StringIO()
    display = JsonLines(out)
    for event in samples.one_of_each():
        display(event, 1.0)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines][:3] == ["RunStarted", "Restored", "StepReplayed"]
    assert lines[1]["siblings_reused"] == 402 and lines[1]["anchor"] == "step_12"
    assert {line["event"] for line in lines} >= {"Warned", "RunEnded", "SnapshotSkipped"}


def test_the_display_fits_where_output_goes() -> None:
    assert isinstance(open_display(stream=io.StringIO()), PlainLines)
    assert isinstance(open_display(as_json=True, stream=io.StringIO()), JsonLines)


def test_a_live_display_draws_and_stops() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with LiveDisplay(console) as display:
        for event in run():
            display(event, 1_000_000.0)
    assert "would cost" in out.getvalue()


def test_a_fresh_report_without_rollouts_reads_well() -> None:
    lines = "\n".join(plain(samples.restored(snapshot=None)))
    assert lines.startswith("resumed from step_12; no rollout state was restored")


def test_the_cost_of_a_kill_speaks_of_tokens_only() -> None:
    """With every token saved a kill still costs the training since the last checkpoint."""
    safe = msgspec.structs.replace(samples.gauges(), at_risk_tokens=0, at_risk_s=0.0)
    assert report.cost(safe) == "no tokens"
    assert "tokens, " in report.cost(samples.gauges())
