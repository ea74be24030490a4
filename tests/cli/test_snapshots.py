"""`outlast snapshots`: list, show, verify; damaged and foreign cuts; exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outlast.errors import NotRestorable
from tests.durable.lives import Life

FIELDS = [
    "id",
    "anchor",
    "sequence",
    "trainer_version",
    "incarnation",
    "created",
    "bytes",
    "state",
    "reason",
]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_the_listing_has_the_fields_scripts_rely_on(run_dir: Path, outlast) -> None:
    done = outlast("snapshots", run_dir, "list", "--json")
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert all(list(row) == FIELDS for row in rows)
    assert [row["sequence"] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
    assert {row["state"] for row in rows} == {"valid"}
    assert rows[1] | {"created": 0, "bytes": 0} == {
        "id": "snapshot_000002",
        "anchor": "step_1",
        "sequence": 2,
        "trainer_version": 1,
        "incarnation": 1,
        "created": 0,
        "bytes": 0,
        "state": "valid",
        "reason": None,
    }
    assert rows[1]["bytes"] == sum(
        f.stat().st_size
        for f in (run_dir / "snapshots" / "snapshot_000002").rglob("*")
        if f.is_file() and f.name not in ("MANIFEST.json", "COMMITTED")
    )


def test_list_is_the_default_and_reads_as_a_table(run_dir: Path, outlast) -> None:
    lines = outlast("snapshots", run_dir).stdout.splitlines()
    assert lines[0].split() == ["id", "cut", "version", "anchor", "life", "taken", "size", "state"]
    assert len(lines) == 8 and all(line.endswith("valid") for line in lines[1:])


def test_a_damaged_manifest_is_corrupt_in_the_listing(run_dir: Path, outlast) -> None:
    flip(run_dir / "snapshots" / "snapshot_000004" / "MANIFEST.json")
    rows = json.loads(outlast("snapshots", run_dir, "--json").stdout)
    (bad,) = [row for row in rows if row["state"] == "corrupt"]
    assert (bad["id"], bad["sequence"], bad["trainer_version"]) == ("snapshot_000004", 4, None)
    assert "COMMITTED says" in bad["reason"]


def test_a_cut_that_nobody_continued_is_foreign(tmp_path: Path, outlast) -> None:
    first = Life(tmp_path)
    first.admit(3)
    first.snapshot()
    second = Life(tmp_path)
    second.step()
    second.snapshot()
    marker = tmp_path / "snapshots" / "snapshot_000002" / "COMMITTED"
    kept = marker.read_bytes()
    marker.write_bytes(b"unreadable for a while")
    third = Life(tmp_path)  # goes on from the cut before
    marker.write_bytes(kept)
    third.snapshot()
    rows = {
        row["sequence"]: row for row in json.loads(outlast("snapshots", tmp_path, "--json").stdout)
    }
    assert [rows[n]["state"] for n in (1, 2, 3)] == ["valid", "foreign", "valid"]
    assert "no later one continued" in rows[2]["reason"]
    verified = outlast("snapshots", tmp_path, "verify")
    assert verified.exit_code == 0  # foreign is whole, only not ours
    assert "whole" in verified.stdout and "foreign" in verified.stdout


def test_show_tells_what_a_cut_holds(run_dir: Path, outlast) -> None:
    shown = json.loads(outlast("snapshots", run_dir, "show", "2", "--json").stdout)
    assert shown["id"] == "snapshot_000002" and shown["state"] == "valid"
    assert (shown["drawn"], shown["trained"], shown["dropped"]) == (5, 2, {"gave_up": 1})
    assert shown["groups"]["open"] == 2 and shown["groups"]["buffered"] == 0
    assert (shown["siblings_sealed"], shown["siblings_missing"]) == (0, 4)
    assert shown["cursor"] == {"epoch": 0, "position": 5, "drawn": 5, "exhausted": False}
    assert shown["sampler"]["admitted"] == 5 and shown["sampler"]["credited"] == 1
    assert shown["applied_steps"] == [] and shown["reserve"] == 0


def test_show_counts_rows_and_tokens_and_applied_steps(tmp_path: Path, outlast) -> None:
    life = Life(tmp_path)
    life.finish(life.admit(1)[0])
    life.step()
    life.finish(life.admit(1)[0])
    life.snapshot()
    shown = json.loads(outlast("snapshots", tmp_path, "show", "--json").stdout)
    assert (shown["rows"], shown["tokens"]) == (6, 60)
    assert shown["groups"]["applied"] == 2 and shown["groups"]["buffered"] == 1
    assert shown["applied_steps"] == [{"step": 1, "groups": 2, "outcome": {"loss": 0.5}}]
    text = outlast("snapshots", tmp_path, "show").stdout
    assert "6 rows, 60 response tokens" in text
    assert "steps above the anchor: 1 (2 groups)" in text


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("snapshot_000007", "snapshot_000007"),
        ("snapshot_7", "snapshot_000007"),
        ("7", "snapshot_000007"),
        ("step_000002", "step_000002"),
        ("step_2", "step_000002"),
        ("3", "step_000002"),  # a bundled cut is a cut like any other
    ],
)
def test_ids_are_read_in_every_spelling(run_dir: Path, outlast, name: str, found: str) -> None:
    assert outlast("snapshots", run_dir, "show", name).stdout.startswith(found)


@pytest.mark.parametrize("name", ["8", "step_9", "snapshot_000007x", "latest"])
def test_an_unknown_id_is_refused_with_those_that_stand(run_dir: Path, outlast, name: str) -> None:
    done = outlast("snapshots", run_dir, "show", name)
    assert done.exit_code == NotRestorable.exit_code == 65
    assert f"{name}: no such cut" in done.stderr and "snapshot_000007" in done.stderr
    assert "Traceback" not in done.stderr


def test_verify_reads_every_byte(run_dir: Path, outlast) -> None:
    assert outlast("snapshots", run_dir, "verify").exit_code == 0
    flip(run_dir / "step_000003" / "trainer" / "weights.bin")
    done = outlast("snapshots", run_dir, "verify", "--json")
    assert done.exit_code == 65
    states = {row["id"]: row["state"] for row in json.loads(done.stdout)}
    assert states.pop("step_000003") == "corrupt"
    assert set(states.values()) == {"valid"}
    one = outlast("snapshots", run_dir, "verify", "step_3")
    assert one.exit_code == 65 and "weights.bin" in one.stdout
    assert outlast("snapshots", run_dir, "verify", "7").exit_code == 0


def test_show_of_a_corrupt_cut_is_refused(run_dir: Path, outlast) -> None:
    flip(run_dir / "snapshots" / "snapshot_000007" / "state.json.zst")
    done = outlast("snapshots", run_dir, "show", "7")
    assert done.exit_code == 65 and "state.json.zst" in done.stderr


def test_a_run_without_cuts(tmp_path: Path, outlast) -> None:
    Life(tmp_path)
    assert "no cut was ever published" in outlast("snapshots", tmp_path).stdout
    assert outlast("snapshots", tmp_path, "show").exit_code == 65
    assert outlast("snapshots", tmp_path, "verify").stdout.strip() == "no cut to verify"


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path, outlast) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    for command in ("snapshots", "status", "audit"):
        done = outlast(command, tmp_path)
        assert done.exit_code == 65, command
        assert "no run.json" in done.stderr
        assert outlast(command, tmp_path / "nowhere").exit_code == 65
