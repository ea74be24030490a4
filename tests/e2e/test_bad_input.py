"""What bad input gets: a refusal that says what to do, its exit code, and nothing written."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from outlast.adapters.prompts.build import build_prompts
from outlast.config.load import load_recipe
from outlast.telemetry import events
from outlast.testing.chaos_child import Child
from tests.e2e.program import outlast, sets, taped, tree

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps whose newest cut is a snapshot, and below it step_3."""
    path = tmp_path_factory.mktemp("finished") / "run"
    done = outlast("train", *sets("algorithm.max_num_steps=3"), "--run-dir", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def _refused(code: int, *arguments: object, says: tuple[str, ...]) -> None:
    done = outlast(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for text in says:
        assert text in done.stderr


# ------------------------------------------------------------------------------ the recipe


def test_an_unknown_key_names_the_nearest_one(run_dir: Path) -> None:
    before = tree(run_dir)
    wrong = "algorithm.num_prompt_per_step=4"
    _refused(
        78, "train", *sets(wrong), "--run-dir", run_dir,
        says=("num_prompt_per_step", "num_prompts_per_step"),
    )  # fmt: skip
    assert tree(run_dir) == before


def test_a_changed_meaning_is_refused_with_old_new_and_remedy(run_dir: Path) -> None:
    before = tree(run_dir)
    changed = sets("algorithm.max_num_steps=4", "generation.max_new_tokens=7")
    _refused(
        65, "train", *changed, "--run-dir", run_dir,
        says=("generation.max_new_tokens", "10 -> 7", "extra_fingerprint_excluded_paths"),
    )  # fmt: skip
    assert tree(run_dir) == before


def test_a_model_directory_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    _refused(
        78, "train", *sets(f"model.path={tmp_path / 'model'}"), "--run-dir", tmp_path / "run",
        says=(str(tmp_path / "model"), "config.json"),
    )  # fmt: skip
    assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------- the directory


def test_a_foreign_directory_is_left_untouched(tmp_path: Path) -> None:
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter_1.txt").write_text("do not lose me")
    before = tree(foreign)
    _refused(65, "train", *sets(), "--run-dir", foreign, says=("run.json", "chapter_1.txt"))
    assert tree(foreign) == before


def test_a_second_controller_is_told_who_holds_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*sets("algorithm.max_num_steps=100000"), "--run-dir", str(run)]
    environment = {"OMP_NUM_THREADS": "1"}
    with Child(
        arguments, tape=tmp_path / "tape", log=tmp_path / "log", environment=environment
    ) as first:
        _until(first, events.AttemptDispatched)
        pid = first.pid
        says = (f"pid {pid}", "incarnation 1", "Stop it first")
        _refused(65, "train", *arguments, says=says)
        _until(first, events.StepFinished)  # the first one has not noticed anything
        first.signal(signal.SIGTERM)
        assert first.wait(60) and first.returncode == 75
    assert "snapshot_" in (tmp_path / "log").read_text().splitlines()[-1]


def _until(child: Child, kind: type[events.Event]) -> None:
    limit = time.monotonic() + 180
    while not any(isinstance(taped.event, kind) for taped in child.read()):
        assert child.returncode is None and time.monotonic() < limit, child.last_words()
        time.sleep(0.02)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_snapshot_is_named_and_the_next_older_one_used(
    run_dir: Path, tmp_path: Path, damage: str
) -> None:
    newest = max((run_dir / "snapshots").iterdir())
    victim = (
        newest / "state.json.zst" if damage != "truncated" else max((newest / "rows").iterdir())
    )
    data = victim.read_bytes()
    victim.unlink()  # rows are hard links: the segment itself stays whole
    if damage == "flipped":
        victim.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
    elif damage == "truncated":
        victim.write_bytes(data[:-1])
    tape = tmp_path / "tape"
    done = outlast(
        "train", *sets("algorithm.max_num_steps=4"), "--run-dir", run_dir, "--tape", tape
    )
    assert done.returncode == 0, done.stderr
    assert "resumed from step_000003" in done.stdout and newest.name in done.stdout
    (restored,) = [e for e in taped(tape) if isinstance(e, events.Restored)]
    assert restored.snapshot == "step_000003"
    ((name, reason),) = restored.rejected
    assert name == newest.name and reason.startswith("corrupt: ") and victim.name in reason
    assert outlast("audit", run_dir).returncode == 0


# ----------------------------------------------------------------------- disk, data, reward


def test_a_full_disk_skips_snapshots_and_training_goes_on(tmp_path: Path) -> None:
    tape = tmp_path / "tape"
    replaying = sets(
        "algorithm.max_num_steps=5",
        "checkpointing.save_period=5",
        "rollout_checkpointing.anchor_policy=replay",
        "rollout_checkpointing.snapshot_attempt_interval_s=0.1",
    )
    done = outlast(
        "train", *replaying, "--run-dir", tmp_path / "run", "--tape", tape,
        environment={"OUTLAST_FAILPOINT": "snapshot.rows_saved:disk_full:1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = taped(tape)
    skipped = [e for e in said if isinstance(e, events.SnapshotSkipped) and e.detail]
    assert [e.reason for e in skipped] == [events.SkipReason.DISK_FULL]
    after = said[said.index(skipped[0]) :]
    assert any(isinstance(e, events.StepFinished) for e in after)
    assert any(isinstance(e, events.SnapshotPublished) for e in after)
    assert outlast("audit", tmp_path / "run").returncode == 0


def test_a_disk_that_stays_full_ends_the_run_with_74_and_what_to_do(tmp_path: Path) -> None:
    command = ("train", *sets("algorithm.max_num_steps=3"), "--run-dir", tmp_path / "run")
    full = outlast(*command, environment={"OUTLAST_FAILPOINT": "snapshot.cut:disk_full:1+"})
    assert full.returncode == 74, full.stderr
    assert "The last snapshot could not be written" in full.stderr
    assert "run the same command again" in full.stderr
    done = outlast(*command)
    assert done.returncode == 0, done.stderr
    assert outlast("audit", tmp_path / "run").returncode == 0


def _dataset(path: Path) -> None:
    """Twelve prompts of the built-in demo; row 5 is no JSON, and row 2 has no answer."""
    source = build_prompts(load_recipe(None, ()).recipe.dataset)
    lines = []
    for index in range(12):
        item = source.item(index)
        answer = "" if index == 2 else item.fields["answer"]
        lines.append(json.dumps({"prompt": item.text, "answer": answer}))
    lines[5] = lines[5][:-4]
    path.write_text("\n".join(lines) + "\n")


def test_bad_rows_and_failing_rewards_cost_only_their_own_prompts(tmp_path: Path) -> None:
    _dataset(tmp_path / "prompts.jsonl")
    (tmp_path / "my_reward.py").write_text(
        "def reward(response, fields):\n"
        "    return fields['answer'][0] in response\n"  # fails for an empty answer
    )
    tape = tmp_path / "tape"
    options = sets(
        "algorithm.max_num_steps=5",
        "dataset.source=jsonl",
        f"dataset.path={tmp_path / 'prompts.jsonl'}",
        "environment.reward=my_reward:reward",
        "async_rl.rollout_failure.on_dropped_prompt=replace",
    )
    done = outlast(
        "train", *options, "--run-dir", tmp_path / "run", "--tape", tape,
        environment={"PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = taped(tape)
    failed = [e for e in said if isinstance(e, events.AttemptFailed)]
    assert {e.kind for e in failed} == {"data"}
    unreadable = {_group(e) for e in failed if "row 5 is unreadable" in e.cause}
    unrewarded = {_group(e) for e in failed if "IndexError" in e.cause}
    assert unreadable and unrewarded
    given_up = {e.group for e in said if isinstance(e, events.GroupDropped)}
    assert given_up == unreadable | unrewarded == {_group(e) for e in failed}
    assert [e.step for e in said if isinstance(e, events.StepFinished)] == [1, 2, 3, 4, 5]
    audit = json.loads(outlast("audit", tmp_path / "run", "--json").stdout)
    assert audit["ok"] and (audit["skipped"], audit["repeated"]) == (0, 0)
    assert audit["trained"] == 20 and audit["dropped"] == len(given_up)


def _group(event: events.AttemptFailed) -> int:
    """Of the key ``g3.s1.i2.n0``."""
    return int(event.key[1:].split(".")[0])
