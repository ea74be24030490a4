"""`outlast status` and `outlast audit`: every state a run can be in, told from files alone."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.lock import LockContent, acquire
from outlast.durable.manifest import encode
from outlast.telemetry.sinks import JsonlSink, telemetry_file
from outlast.world import real_world
from tests.durable.lives import FILES, Life
from tests.telemetry import samples

FIELDS = {
    "state",
    "step",
    "trainer_version",
    "buffered",
    "inflight",
    "last_snapshot",
    "at_risk_tokens",
}


def status(outlast, path: Path) -> dict[str, object]:
    done = outlast("status", path, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) >= FIELDS
    return found


def tell(path: Path, incarnation: int, *events) -> None:
    sink = JsonlSink(telemetry_file(path, incarnation))
    for event in events:
        sink(event, time.time())
    sink.close()


def test_empty(tmp_path: Path, outlast) -> None:
    found = status(outlast, tmp_path)
    assert (found["state"], found["step"], found["last_snapshot"]) == ("empty", 0, None)
    assert "no controller" in outlast("status", tmp_path).stdout


def test_killed_and_what_it_cost(run_dir: Path, outlast) -> None:
    found = status(outlast, run_dir)
    assert (found["state"], found["step"]) == ("killed", 4)
    assert (found["last_snapshot"], found["at_risk_tokens"]) == ("snapshot_000007", 0)
    assert found["lost_tokens"] is None
    tell(run_dir, 3, samples.started(3), samples.gauges(4))
    assert status(outlast, run_dir)["lost_tokens"] == 12_345
    assert "the kill cost about 12.3 k tokens" in outlast("status", run_dir).stdout


@pytest.mark.parametrize(
    ("reason", "state"),
    [("preempted", "preempted"), ("finished", "finished"), ("StallAbort", "stopped")],
)
def test_an_orderly_end(tmp_path: Path, outlast, reason: str, state: str) -> None:
    life = Life(tmp_path)
    life.finish(life.admit(1)[0])
    life.snapshot()
    life.end(reason)
    found = status(outlast, tmp_path)
    assert (found["state"], found["reason"]) == (state, reason)
    assert (found["buffered"], found["inflight"], found["at_risk_tokens"]) == (1, 0, 0)


def test_running_reads_the_latest_gauges(run_dir: Path, outlast) -> None:
    held = acquire(FILES, PurePosixPath(run_dir), world=real_world(seed=0))
    try:
        unsaid = status(outlast, run_dir)
        assert (unsaid["state"], unsaid["at_risk_tokens"], unsaid["step"]) == ("running", None, 4)
        assert "has not said yet" in outlast("status", run_dir).stdout
        tell(run_dir, 3, samples.started(3), samples.step(13), samples.gauges(13))
        found = status(outlast, run_dir)
        assert (found["step"], found["buffered"], found["inflight"]) == (13, 30, 256)
        assert (found["at_risk_tokens"], found["at_risk_s"]) == (12_345, 1.5)
        assert found["last_snapshot"] == "snapshot_000007"
        assert "would cost 12.3 k tokens" in outlast("status", run_dir).stdout
    finally:
        held.release()
    assert status(outlast, run_dir)["state"] == "killed"


def test_status_does_not_disturb_the_lock(run_dir: Path, outlast) -> None:
    status(outlast, run_dir)
    held = acquire(FILES, PurePosixPath(run_dir), world=real_world(seed=0))
    status(outlast, run_dir)
    descriptor = os.open(run_dir / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    held.release()


def test_queries_change_nothing(run_dir: Path, outlast) -> None:
    before = {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")}
    for command in ("status", "snapshots", "audit"):
        assert outlast(command, run_dir).exit_code == 0
    outlast("snapshots", run_dir, "verify")
    outlast("snapshots", run_dir, "show")
    assert {p: p.stat().st_mtime_ns for p in run_dir.rglob("*")} == before


@pytest.mark.parametrize(("age_s", "state"), [(5, "running"), (600, "killed")])
def test_a_fresh_heartbeat_of_another_host_counts_as_running(
    run_dir: Path, outlast, age_s: float, state: str
) -> None:
    content = LockContent(host="elsewhere", pid=1, incarnation=3, heartbeat=time.time() - age_s)
    (run_dir / "lock").write_bytes(encode(content))
    assert status(outlast, run_dir)["state"] == state


def test_a_damaged_newest_cut_is_told(run_dir: Path, outlast) -> None:
    (run_dir / "snapshots" / "snapshot_000007" / "MANIFEST.json").write_bytes(b"{}")
    found = status(outlast, run_dir)
    assert (found["last_snapshot"], found["damaged"]) == ("step_000004", 1)


def test_audit_says_ok_with_the_counts_scripts_rely_on(run_dir: Path, outlast) -> None:
    done = outlast("audit", run_dir, "--json")
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    counts = ("ok", "drawn", "trained", "dropped", "outstanding", "skipped", "repeated")
    assert [report[name] for name in counts] == [True, 11, 8, 1, 2, 0, 0]
    assert [life["restored_from"] for life in report["incarnations"]] == [None, 2, 4]
    assert [life["steps"] for life in report["incarnations"]] == [1, 1, 2]
    assert outlast("audit", run_dir).stdout.startswith("exactly once")


def test_audit_names_what_each_life_reused(run_dir: Path, outlast) -> None:
    tell(run_dir, 2, samples.started(2), samples.restored())
    lives = json.loads(outlast("audit", run_dir, "--json").stdout)["incarnations"]
    assert [life["siblings_reused"] for life in lives] == [None, 402, None]
    assert "402 responses" in outlast("audit", run_dir).stdout


def test_audit_of_a_violated_run_exits_70(run_dir: Path, outlast) -> None:
    log = run_dir / "consumption" / "inc_000002.log"
    log.write_bytes(log.read_bytes()[:-3])
    done = outlast("audit", run_dir, "--json")
    assert done.exit_code == 70
    report = json.loads(done.stdout)
    assert report["ok"] is False and report["violations"]
    text = outlast("audit", run_dir).stdout
    assert text.startswith("VIOLATED") and "the cut names" in text


def test_audit_of_a_run_that_published_nothing(tmp_path: Path, outlast) -> None:
    Life(tmp_path)
    done = outlast("audit", tmp_path)
    assert done.exit_code == 0 and "nothing was ever published" in done.stdout
