"""The benchmark runs, and prints what it measured; its figures are nobody's assertion."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from outlast.testing.bench import report, run_bench
from outlast.testing.bench_measures import Sizes

TINY = Sizes(
    groups=64,
    in_flight=32,
    rows_bytes=8 << 20,
    cuts=20,
    append_bytes=4 << 20,
    torch_rows=(64,),
    rounds=1,
)


@pytest.mark.slow
def test_a_small_bench_measures_real_snapshots(tmp_path: Path) -> None:
    found = json.loads(json.dumps(run_bench(TINY, tmp_path, say=lambda _: None)))
    cut, append = found["cut"], found["append"]
    assert (cut["rows"], cut["second_new_rows"]) == (64 * 16, 64 * 16)
    assert 0 < cut["hold_p50_ms"] <= cut["hold_p99_ms"] <= cut["hold_max_ms"]
    assert 7 << 20 <= cut["first_bytes"] < 16 << 20  # the rows, their index and the state
    assert 0.4 < cut["second_share"] < 0.8  # half of the rows are new, and every index is
    assert append["rows"] % 64 == 0 and append["rows_per_s"] > 0
    assert found["torch_save"]["64"]["ratio"] > 0
    out = io.StringIO()
    report(found, Console(file=out, width=200))
    assert "cut hold, 64 groups, 1,024 rows, 20 cuts" in out.getvalue()
    assert "<= 1/6" in out.getvalue() and "missed" in out.getvalue()
