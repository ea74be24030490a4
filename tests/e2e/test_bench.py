"""The benchmark runs, and prints what it measured; its figures are nobody's assertion."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from outlast.testing import bench_transfer_queue
from outlast.testing.bench import QUICK, Plan, goodput_picture, main, report, run_bench


def bench(plan: Plan, directory: Path) -> tuple[dict[str, Any], str]:
    """The document, once through JSON, and the printed table."""
    found: dict[str, Any] = {}
    run_bench(plan, directory, found=found, say=lambda _: None)
    found = json.loads(json.dumps(found))
    out = io.StringIO()
    report(found, Console(file=out, width=200))
    return found, out.getvalue()


@pytest.mark.slow
def test_a_small_bench_measures_real_snapshots(tmp_path: Path) -> None:
    found, table = bench(replace(QUICK, only=("cut", "append", "torch")), tmp_path)
    cut, append = found["cut"], found["append"]
    assert (cut["rows"], cut["second_new_rows"]) == (64 * 16, 64 * 16)
    assert 0 < cut["hold_p50_ms"] <= cut["hold_p99_ms"] <= cut["hold_max_ms"]
    assert 7 << 20 <= cut["first_bytes"] < 16 << 20  # the rows, their index and the state
    assert 0.4 < cut["second_share"] < 0.8  # half of the rows are new, and every index is
    assert append["rows"] % 64 == 0 and append["rows_per_s"] > 0
    assert found["torch"]["64"]["ratio"] > 0
    assert "cut hold, 64 groups, 1,024 rows, 20 cuts" in table
    assert "<= 1/6" in table and "missed" in table


@pytest.mark.slow
def test_transfer_queue_is_measured_or_said_to_be_missing(tmp_path: Path) -> None:
    lacking = bench_transfer_queue.missing()
    if not lacking:
        pytest.skip("TransferQueue is installed: `make bench` measures it")
    found, table = bench(replace(QUICK, only=("transfer_queue",)), tmp_path)
    assert list(found["transfer_queue"]) == ["not_measured"]
    assert "NOT MEASURED" in table and lacking[0] in table


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_are_dealt_and_counted(tmp_path: Path) -> None:
    goodput = replace(QUICK.goodput, names=("none", "token"))
    found, table = bench(replace(QUICK, only=("goodput",), goodput=goodput), tmp_path)
    for figures in found["goodput"].values():
        assert figures["steps"] == 8 and figures["lives"] == figures["kills"] + 1
        assert figures["trained_tokens"] == 8 * 64 * 64  # endless responses fill their budget
        assert figures["generated_tokens"] > 0
        assert len(figures["deaths"]) == figures["kills"] <= 1  # a fast machine may be done before
        assert 0 < figures["restart_s"] < figures["wall_s"]
    assert "goodput, token: 8 steps" in table
    assert "<svg" in goodput_picture(found["goodput"], goodput)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_snapshots_of_a_real_run_are_counted_and_weighed(tmp_path: Path) -> None:
    found, table = bench(replace(QUICK, only=("throughput", "many")), tmp_path)
    off, on = found["throughput"].values()
    assert (off["ratio"], off["snapshots"]) == (1.0, 0) and on["ratio"] > 0
    many = found["many"]
    assert many["snapshots"] == 3 and many["bytes_first_quarter"] > 0
    assert 1 <= many["live_max"] <= many["keep_latest_k"] + 1
    assert 0 < many["state_bytes_max_second_half"] <= many["all_bytes_max"]
    assert "3 snapshots, one every 0.5 s" in table


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "cut,nonsense"])
    assert "--only nonsense: the parts are cut, append" in capsys.readouterr().err
