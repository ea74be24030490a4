"""JSON lines and TensorBoard: what goes in comes out, and neither can hurt the run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from outlast.errors import RecipeError
from outlast.telemetry.bus import Bus
from outlast.telemetry.sinks import JsonlSink, TensorBoardSink, encode_line, telemetry_file
from outlast.telemetry.summary import (
    decode_line,
    read_events,
    read_progress,
    telemetry_files,
)
from outlast.world import SystemClock
from tests.telemetry import samples


def test_every_event_survives_its_line() -> None:
    for event in samples.one_of_each():
        stamped = decode_line(encode_line(event, 1_700_000_000.25))
        assert stamped is not None
        assert stamped.event == event
        assert stamped.wall == 1_700_000_000.25


def test_lines_are_plain_json_with_wall_and_event_first() -> None:
    line = json.loads(encode_line(samples.gauges(), 12.5))
    assert list(line)[:2] == ["wall", "event"]
    assert line["event"] == "Gauges" and line["at_risk_tokens"] == 12_345


def test_the_sink_writes_all_lines_in_order(tmp_path: Path) -> None:
    path = telemetry_file(tmp_path, 3)
    sink = JsonlSink(path)
    bus = Bus(SystemClock(), sink)
    for event in samples.one_of_each():
        bus.emit(event)
    sink.close()
    sink.close()
    assert [s.event for s in read_events(path)] == list(samples.one_of_each())
    assert list(telemetry_files(tmp_path)) == [3]
    assert path.name == "inc_000003.jsonl"


def test_lines_reach_the_disk_without_another_event(tmp_path: Path) -> None:
    path = telemetry_file(tmp_path, 1)
    sink = JsonlSink(path, flush_s=0.02)
    sink(samples.gauges(), 1.0)
    deadline = time.monotonic() + 10
    while not path.stat().st_size and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(read_events(path))) == 1
    sink.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "telemetry" / "inc_000001.jsonl"
    path.parent.mkdir()
    path.symlink_to("/dev/full")
    sink = JsonlSink(path)
    sink(samples.gauges(), 1.0)
    sink.close()
    assert sink.lost == 1


def test_the_tail_starts_at_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [encode_line(samples.step(n), float(n)) for n in range(1, 11)]
    path.write_bytes(b"".join(lines))
    found = list(read_events(path, tail_bytes=len(lines[-1]) * 3 + 5))
    assert [s.wall for s in found] == [8.0, 9.0, 10.0]


def test_torn_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    whole = encode_line(samples.step(1), 1.0)
    path.write_bytes(whole + b'{"wall":2.0,"event":"Later"}\n' + whole[:20])
    assert [s.wall for s in read_events(path)] == [1.0]


def test_progress_of_a_large_file_still_knows_its_start(tmp_path: Path) -> None:
    path = telemetry_file(tmp_path, 2)
    path.parent.mkdir()
    filler = encode_line(samples.sealed(), 2.0)
    with path.open("wb") as file:
        file.write(encode_line(samples.started(2), 1.0))
        file.write(filler * (5_000_000 // len(filler)))
        file.write(encode_line(samples.step(9), 3.0))
        file.write(encode_line(samples.gauges(9), 4.0))
    progress = read_progress(tmp_path, 2)
    assert progress is not None
    assert progress.started == samples.started(2)
    assert progress.version == 9 and progress.gauges_wall == 4.0
    assert read_progress(tmp_path, 1) is None


def test_tensorboard_reads_back_scalars_and_the_histogram(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoardSink(tmp_path)
    for n in (1, 2, 3):
        sink(samples.step(n), 100.0 + n)
    sink(samples.published(), 104.0)
    sink.close()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    loss = found.Scalars("train/loss")
    assert [(s.step, s.wall_time) for s in loss] == [(1, 101.0), (2, 102.0), (3, 103.0)]
    assert [s.value for s in loss] == pytest.approx([-0.01] * 3)
    (hold,) = found.Scalars("timing/rollout_checkpoint/exclusive_hold_seconds")
    assert hold.step == 3 and hold.value == pytest.approx(0.001)
    histogram = found.Histograms("rollout/staleness")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num) == (0, 1, 2)
    assert list(histogram.bucket) == [1, 1]


def test_without_tensorboard_the_refusal_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RecipeError, match=r"outlast\[tensorboard\]"):
        TensorBoardSink(tmp_path)
