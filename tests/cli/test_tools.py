"""The tools on one small real run: fork and go on, restore and gc plans, rollouts, eval, export."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from outlast.cli.wiring import Launch, run_training
from outlast.config.load import LoadedRecipe, load_recipe
from outlast.runtime.controller import Ending, Outcome
from outlast.telemetry.events import StepFinished

SMALL = (
    "algorithm.num_prompts_per_step=4",
    "algorithm.num_generations_per_prompt=4",
    "async_rl.min_groups_for_streaming_train=4",
    "async_rl.max_buffered_rollouts=8",
    "async_rl.max_inflight_prompts=8",
    "checkpointing.save_period=4",
    "rollout_checkpointing.anchor_policy=replay",
    "rollout_checkpointing.snapshot_attempt_interval_s=auto",
    "rollout_checkpointing.mtbf_s=3600",
    "validation.val_period=4",
    "validation.size=8",
)


def small(*overrides: str, steps: int = 100) -> LoadedRecipe:
    return load_recipe(None, (*SMALL, f"algorithm.max_num_steps={steps}", *overrides))


def trained(path: Path, loaded: LoadedRecipe) -> Outcome:
    return run_training(loaded, Launch(run_dir=path))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run preempted after step 5: ``step_4``, and a last snapshot a step or two above it."""
    path = tmp_path_factory.mktemp("tools") / "run"
    path.mkdir()

    def stop(event: object, wall: float, /) -> None:
        if isinstance(event, StepFinished) and event.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    outcome = run_training(small(), Launch(run_dir=path), sinks=(stop,))
    assert outcome.ending is Ending.PREEMPTED and 5 <= outcome.version <= 7
    return path


@pytest.fixture
def newest(stopped: Path, outlast) -> dict:
    """What `show` says of the last snapshot."""
    return answer(outlast("snapshots", stopped, "show", "--json"))


@pytest.fixture
def run_dir(stopped: Path) -> Iterator[Path]:
    """The run itself: every test proves that its command changed nothing."""
    before = image(stopped)
    yield stopped
    assert image(stopped) == before


def image(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def answer(done) -> dict:
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_P2_a_fork_trains_on_and_audits_clean(
    run_dir: Path, tmp_path: Path, newest: dict, outlast
) -> None:
    target = tmp_path / "deep" / "fork"
    version = newest["trainer_version"]
    made = answer(outlast("fork", run_dir, "--at", newest["id"], target, "--json"))
    assert (made["trainer_version"], made["steps_to_replay"]) == (version, version - 4)
    assert trained(target, small(steps=version + 1)).version == version + 1
    report = answer(outlast("audit", target, "--json"))
    assert report["ok"] and report["trained"] == (version + 1) * 4
    lives = [(life["ended"], life["replayed"]) for life in report["incarnations"]]
    assert lives == [("preempted", 0), ("forked", 0), ("finished", version - 4)]


def test_P2_a_fork_without_rollouts_takes_another_recipe(
    run_dir: Path, tmp_path: Path, outlast
) -> None:
    target, change = tmp_path / "fork", "algorithm.num_generations_per_prompt=2"
    other = ("--set", change, "--set", "async_rl.sampler.lookahead=0")
    done = outlast(
        "fork", run_dir, "--at", "step_4", target, "--without-rollouts", *other, "--json"
    )
    made = answer(done)
    assert (made["siblings"], made["groups"]) == (0, 0) and made["reserve"] > 0
    loaded = small(change, "async_rl.sampler.lookahead=0", steps=5)
    assert trained(target, loaded).version == 5
    report = answer(outlast("audit", target, "--json"))
    assert report["ok"] and report["trained"] == 5 * 4
    assert outlast("train", "--run-dir", target).exit_code == 65  # the old recipe no longer fits


def test_fork_refuses_what_is_not_empty_and_a_recipe_for_rows(
    run_dir: Path, tmp_path: Path, outlast
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = outlast("fork", run_dir, "--at", "step_4", tmp_path)
    assert done.exit_code == 65 and "notes.txt; required: an empty directory" in done.stderr
    done = outlast("fork", run_dir, "--at", "step_4", tmp_path / "f", "--set", "seed=3")
    assert done.exit_code == 78 and "--without-rollouts" in done.stderr
    assert outlast("fork", run_dir, "--at", "99", tmp_path / "f").exit_code == 65


def test_restore_tells_what_the_next_start_then_reports(
    run_dir: Path, tmp_path: Path, outlast
) -> None:
    more = ("--set", "algorithm.max_num_steps=8", "--json")
    planned = answer(outlast("restore", run_dir, "--dry-run", *more))
    assert planned["action"] == "resume" and planned["anchor"] == "step_4"
    copy = Path(shutil.copytree(run_dir, tmp_path / "copy"))
    reports = []

    def sink(event: object, wall: float, /) -> None:
        if type(event).__name__ == "Restored":
            reports.append(event)

    run_training(small(steps=8), Launch(run_dir=copy), sinks=(sink,))
    (report,) = reports
    for name in (
        *("anchor", "snapshot", "sequence", "trainer_version", "steps_to_replay"),
        *("groups_reused", "siblings_reused", "tokens_reused", "siblings_redispatched"),
    ):
        assert planned[name] == getattr(report, name), name


def test_restore_says_when_there_is_nothing_to_do_or_a_refusal(run_dir: Path, outlast) -> None:
    at = ("--set", "rollout_checkpointing.restore_mode=trainer_checkpoint")
    done = outlast("restore", run_dir, "--dry-run", *at, "--set", "algorithm.max_num_steps=4")
    assert "nothing to do: step_000004 is at the target" in done.stdout
    assert outlast("restore", run_dir, "--dry-run", "--set", "seed=1").exit_code == 65
    assert outlast("restore", run_dir).exit_code == 2


def test_why_gives_the_fields_scripts_rely_on(run_dir: Path, newest: dict, outlast) -> None:
    fine = answer(outlast("snapshots", run_dir, "why", newest["id"], "--json"))
    assert fine["restorable"] and fine["differences"] == fine["reasons"] == fine["remedy"] == []
    other = ("--set", "generation.top_k=3", "--json")
    bad = answer(outlast("snapshots", run_dir, "why", newest["id"], *other))
    assert not bad["restorable"] and bad["differences"][0]["dotpath"] == "generation.top_k"
    assert "Set it back to 0" in bad["remedy"][0]


def test_diff_takes_two_cuts(run_dir: Path, newest: dict, outlast) -> None:
    found = answer(outlast("snapshots", run_dir, "diff", "step_4", newest["id"], "--json"))
    steps = newest["trainer_version"] - 4
    assert len(found["steps"]) == steps and found["siblings_trained"] == steps * 4 * 4
    assert "between them: 5" in outlast("snapshots", run_dir, "diff", "step_4", newest["id"]).stdout
    assert outlast("snapshots", run_dir, "diff", newest["id"]).exit_code == 2
    assert outlast("snapshots", run_dir, "show", newest["id"], "--set", "seed=3").exit_code == 2


def test_gc_removes_nothing(run_dir: Path, outlast) -> None:
    found = answer(
        outlast(
            "gc", run_dir, "--dry-run", "--json", "--set", "rollout_checkpointing.keep_latest_k=1"
        )
    )
    assert all(r["by"] in ("retention", "sweep") for r in found)
    assert outlast("gc", run_dir).exit_code == 2


def test_rollouts_come_with_texts_in_both_formats(run_dir: Path, tmp_path: Path, outlast) -> None:
    lines = outlast("rollouts", run_dir, "--to", "jsonl", "--out", "-").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    table = tmp_path / "r.parquet"
    made = answer(outlast("rollouts", run_dir, "--to", "parquet", "--out", table, "--json"))
    assert made["rollouts"] == len(records) and made["texts"]
    rows = pq.read_table(table).to_pylist()
    assert [(r["group"], r["sibling"]) for r in rows] == [
        (r["group"], r["sibling"]) for r in records
    ]
    sealed = [r for r in rows if r["stage"] == "sealed"]
    assert sealed and all(r["prompt"].endswith("=") and r["response_ids"] for r in sealed)
    assert {r["response"] for r in sealed} == {
        r["response"] for r in records if r["stage"] == "sealed"
    }
    again = outlast("rollouts", run_dir, "--to", "parquet", "--out", table)
    assert again.exit_code == 65 and "is not overwritten" in again.stderr
    assert outlast("rollouts", run_dir, "--to", "parquet", "--out", "-").exit_code == 2


def test_rollouts_without_a_model_keep_their_token_ids(
    run_dir: Path, tmp_path: Path, outlast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.adapters import tokenizer
    from outlast.errors import RecipeError

    def absent(directory: Path) -> None:
        raise RecipeError(f"model.path: {directory} has no tokenizer")

    monkeypatch.setattr(tokenizer, "load_tokenizer", absent)
    done = outlast("rollouts", run_dir, "--to", "jsonl", "--out", tmp_path / "r.jsonl", "--json")
    assert not answer(done)["texts"] and "only token ids" in done.stderr
    first = json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])
    assert first["prompt"] is None and first["response_ids"]


def test_eval_gives_what_the_run_measured(run_dir: Path, newest: dict, outlast) -> None:
    found = answer(outlast("eval", run_dir, "--step", "4", "--json"))
    assert (found["checkpoint"], found["prompts"], found["failed"]) == ("step_000004", 8, 0)
    initial = answer(outlast("eval", run_dir, "--step", "0", "--json"))
    assert initial["checkpoint"] == "bootstrap" and initial["recorded"] is not None
    assert initial["reward"] == pytest.approx(initial["recorded"])
    below = answer(outlast("eval", run_dir, "--snapshot", newest["id"], "--size", "2", "--json"))
    assert (below["checkpoint"], below["steps_not_included"]) == (
        "step_000004",
        newest["trainer_version"] - 4,
    )
    assert outlast("eval", run_dir, "--step", "3").exit_code == 65


def test_A1_an_export_is_the_checkpoint_and_loads_in_transformers(
    run_dir: Path, tmp_path: Path, outlast
) -> None:
    import asyncio

    from transformers import AutoModelForCausalLM, AutoTokenizer

    from outlast.adapters.torch_model import named_state
    from outlast.cli.output import open_run
    from outlast.cli.weights import load_weights, reading_trainer, trainer_state
    from outlast.world import real_world

    target = tmp_path / "hf"
    (tmp_path / "hf.exporting" / "unfinished").mkdir(parents=True)  # an export was killed
    (tmp_path / "hf.exporting" / "lock").touch()
    made = answer(outlast("export", run_dir, "--to", target, "--json"))
    assert made["checkpoint"] == "step_000004" and "model.safetensors" in made["files"]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(target).encode("1+1=")
    path, listing = open_run(run_dir)
    state = trainer_state(path, listing, step=4, snapshot=None)
    trainer = reading_trainer(small().recipe, path, world=real_world(seed=0))

    async def weights():
        try:
            return (await load_weights(trainer, state)).payload
        finally:
            await trainer.close()

    kept = asyncio.run(weights())
    exported = named_state(model)
    assert exported.keys() == kept.keys()
    assert all(torch.equal(exported[name], kept[name]) for name in kept)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    again = outlast("export", run_dir, "--to", target)
    assert again.exit_code == 65 and "is not empty" in again.stderr


def test_a_damaged_shard_is_neither_evaluated_nor_exported(
    stopped: Path, tmp_path: Path, outlast
) -> None:
    copy = Path(shutil.copytree(stopped, tmp_path / "copy"))
    shard = max((copy / "step_000004" / "trainer").iterdir(), key=lambda p: p.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    assert outlast("eval", copy).exit_code == 65
    assert outlast("export", copy, "--to", tmp_path / "hf").exit_code == 65
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]


def test_plan_advises_from_the_measured_cost(run_dir: Path, outlast) -> None:
    advice = answer(outlast("plan", run_dir, "--json"))
    assert advice["mtbf_from"] == "rollout_checkpointing.mtbf_s" and advice["mtbf_s"] == 3600.0
    assert advice["optimum_s"] == pytest.approx((2 * 3600.0 * advice["cost_s"]) ** 0.5)
    best = min(advice["rows"], key=lambda row: row["total"])
    assert best["optimum"] and advice["snapshots"] >= 1
    table = outlast("plan", run_dir, "--mtbf-s", "600").stdout
    assert "<- optimum" in table and "--mtbf-s" in table
