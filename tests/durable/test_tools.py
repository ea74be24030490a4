"""What the tools read out of cuts: differences, verdicts, rollouts, and what would be removed."""

from __future__ import annotations

import shutil
from pathlib import Path, PurePosixPath

import numpy as np
import pytest

from outlast.durable.collection import Keep, Removal, removals
from outlast.durable.cutcodec import LoadedCut, load_cut
from outlast.durable.diff import Difference, Pair, diff_cuts
from outlast.durable.fingerprint import Fingerprint
from outlast.durable.listing import read_run
from outlast.durable.manifest import FoundCut, RunListing
from outlast.durable.restore import RestoreMode
from outlast.durable.retention import Retention
from outlast.durable.rollouts import Rollout, Stage, rollouts_of
from outlast.durable.why import Why, why
from tests.durable.lives import FILES
from tests.durable.row_lives import TOKENS, RowLife, busy, fingerprint, make_row


class Free:
    """A fence nobody contests."""

    def check(self) -> None:
        """Always ours."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tools") / "run"
    busy(path)
    return path


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    """Hard links kept: what is freed depends on them."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def listing(path: Path) -> RunListing:
    return read_run(FILES, PurePosixPath(path), verify="manifest")


def named(path: Path, name: str) -> FoundCut:
    return next(found for found in listing(path).cuts if found.path.name == name)


def loaded(path: Path, name: str) -> LoadedCut:
    return load_cut(FILES, PurePosixPath(path), found=named(path, name))


def compared(path: Path, a: str, b: str) -> Difference:
    return diff_cuts(
        FILES, PurePosixPath(path), listing=listing(path), a=loaded(path, a), b=loaded(path, b)
    )


# ---------------------------------------------------------------------------------------- diff


def test_a_difference_names_what_became_of_every_group(original: Path) -> None:
    d = compared(original, "snapshot_000002", "snapshot_000003")
    assert d.steps == (2, 3) and d.trainer_version == Pair(before=1, after=3)
    assert d.anchors == ("step_1", "step_1") and d.same_history
    assert d.transitions == {
        "open -> applied": 1,
        "undrawn -> applied": 3,
        "undrawn -> buffered": 1,
        "undrawn -> open": 1,
    }
    assert (d.siblings_sealed, d.siblings_trained, d.siblings_dropped) == (10, 8, 0)
    assert (d.rows, d.rows_added, d.tokens_added) == (Pair(before=0, after=10), 10, 10 * TOKENS)
    assert d.prefix_tokens == Pair(before=0, after=4)
    assert d.drawn == Pair(before=4, after=9)
    assert d.cursor == ("epoch 0, position 4", "epoch 1, position 2")
    assert d.sampler["admitted"] == Pair(before=4, after=9)
    assert 0 < d.bytes_added <= d.bytes.after


def test_a_settled_group_is_looked_up_in_the_log(original: Path) -> None:
    d = compared(original, "step_000001", "snapshot_000002")
    assert d.transitions == {"undrawn -> dropped:gave_up": 1} and d.steps == ()
    back = compared(original, "snapshot_000003", "step_000001")
    assert back.transitions["applied -> undrawn"] == 3 and back.seconds < 0
    assert back.rows_removed == 10


def test_cuts_of_different_branches_say_so(tmp_path: Path) -> None:
    first = RowLife(tmp_path)
    first.snapshot()
    for seal in (True, False):
        life = RowLife(tmp_path)
        if seal:
            life.step()
        else:
            life.drop(life.admit(1)[0])
            life.step()
        life.snapshot()
        if seal:
            (tmp_path / "snapshots" / "snapshot_000002" / "COMMITTED").rename(tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / "snapshots" / "snapshot_000002" / "COMMITTED")
    d = compared(tmp_path, "snapshot_000002", "snapshot_000003")
    assert not d.same_history and d.trainer_version == Pair(before=1, after=1)
    assert d.transitions["applied -> dropped:gave_up"] == 1 and d.siblings_dropped == 2


# ----------------------------------------------------------------------------------------- why


def judged(path: Path, name: str, current: Fingerprint | None = None) -> Why:
    return why(
        FILES,
        PurePosixPath(path),
        listing=listing(path),
        found=named(path, name),
        fingerprint=current or fingerprint(),
        mode=RestoreMode.LATEST,
    )


def test_why_of_the_cut_that_a_start_would_use(run_dir: Path) -> None:
    w = judged(run_dir, "snapshot_000003")
    assert w.restorable and w.chosen == "snapshot_000003"
    assert (w.reasons, w.differences, w.remedy) == ((), (), ())
    assert (w.anchor, w.steps_to_replay) == ("step_1", 2)


def test_why_of_an_older_cut_names_the_newer_one(run_dir: Path) -> None:
    w = judged(run_dir, "snapshot_000002")
    assert w.restorable and w.reasons == (
        "a start would go on from snapshot_000003, which is newer",
    )
    assert "fork RUN --at snapshot_000002" in w.remedy[0]


def test_why_of_a_semantic_change(run_dir: Path) -> None:
    w = judged(run_dir, "snapshot_000003", fingerprint("generation.temperature=0.5"))
    (d,) = w.differences
    assert not w.restorable and w.chosen is None and w.state == "valid"
    assert (d.dotpath, d.kind, d.stored, d.now) == (
        "generation.temperature",
        "semantic",
        "1.0",
        "0.5",
    )
    assert "Set it back to 1.0" in w.remedy[0]
    assert "fork RUN --at step_000001 NEW_DIR --without-rollouts" in w.remedy[-1]


def test_why_of_a_training_change_depends_on_replay(run_dir: Path) -> None:
    changed = fingerprint("training.learning_rate=0.5")
    above, at = judged(run_dir, "snapshot_000003", changed), judged(run_dir, "step_000001", changed)
    assert not above.restorable and at.restorable
    assert at.differences[0].accepted and not above.differences[0].accepted


def test_why_no_fork_is_offered_that_would_be_refused(run_dir: Path) -> None:
    w = judged(run_dir, "snapshot_000003", fingerprint("seed=9"))
    assert not w.restorable and w.remedy[-1] == "or start a new run under this recipe"


def test_why_of_a_corrupt_cut(run_dir: Path) -> None:
    state = run_dir / "snapshots" / "snapshot_000003" / "state.json.zst"
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)
    w = judged(run_dir, "snapshot_000003")
    assert not w.restorable and w.state == "corrupt" and "state.json.zst" in w.reasons[0]
    assert w.chosen == "snapshot_000002" and "snapshot_000002 instead" in w.remedy[-1]


def test_why_of_a_foreign_cut(run_dir: Path) -> None:
    marker = run_dir / "snapshots" / "snapshot_000003" / "COMMITTED"
    kept = marker.read_bytes()
    marker.write_bytes(b"unreadable for a while")
    RowLife(run_dir).snapshot()
    marker.write_bytes(kept)
    w = judged(run_dir, "snapshot_000003")
    assert not w.restorable and w.state == "foreign" and "no later one continued" in w.reasons[0]
    assert w.remedy == ("outlast fork RUN --at snapshot_000003 NEW_DIR: a new run goes on from it",)


def test_why_of_a_cut_whose_anchor_is_gone(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "step_000001")
    w = judged(run_dir, "snapshot_000003")
    assert not w.restorable and "anchor step_1 does not exist" in w.reasons[0]
    assert w.remedy == ("bring its anchor back from a backup, or use another cut",)


# ------------------------------------------------------------------------------------ rollouts


def test_A1_rollouts_are_the_rows_and_prefixes_of_the_cut(original: Path) -> None:
    cut = loaded(original, "snapshot_000003")
    found: list[Rollout] = list(rollouts_of(FILES, cut))
    assert [(r.group, r.sibling) for r in found] == [
        (g.id, s.index) for g in cut.cut.groups for s in g.siblings
    ]
    stages = [r.stage for r in found]
    assert (stages.count(Stage.SEALED), stages.count(Stage.PARTIAL)) == (10, 1)
    for r, sibling in zip(found, (s for g in cut.cut.groups for s in g.siblings), strict=True):
        if r.stage is Stage.WAITING:
            assert (r.tokens, r.response_ids, r.reward, r.min_version) == (0, [], None, None)
            continue
        row = make_row(sibling.attempt.key, version=r.min_version or 0, tokens=r.tokens)
        assert r.response_ids == row.response_ids.tolist()
        assert np.array_equal(np.array(r.logprobs, np.float32), row.logprobs)
    partial = next(r for r in found if r.stage is Stage.PARTIAL)
    assert (partial.tokens, partial.reward, partial.truncated, partial.state) == (
        4,
        None,
        None,
        "open",
    )
    sealed = next(r for r in found if r.stage is Stage.SEALED and r.sibling == 1)
    assert (sealed.reward, sealed.trained_reward, sealed.keep) == (1.0, 1.0, True)


# ------------------------------------------------------------------------------------- removal


def planned(path: Path, *, latest_k: int = 2) -> tuple[Removal, ...]:
    keep = Keep(latest_k=latest_k, top_k=0, score=lambda manifest: None)
    return removals(FILES, PurePosixPath(path), listing=listing(path), keep=keep)


def test_nothing_superseded_nothing_removed(original: Path) -> None:
    assert planned(original) == ()


def test_the_plan_is_what_retention_and_sweep_then_do(run_dir: Path) -> None:
    life = RowLife(run_dir)
    for _ in range(3):
        life.replay() if life.state.steps.to_replay else life.step()
        life.snapshot()
    (run_dir / "snapshots" / "tmp_000099").mkdir()
    (run_dir / "snapshots" / "tmp_000099" / "state.json.zst").write_bytes(b"x" * 100)
    plan = planned(run_dir)
    before = {str(p.relative_to(run_dir)) for p in run_dir.rglob("*")}
    assert {str(p.relative_to(run_dir)) for p in run_dir.rglob("*")} == before
    retention = Retention(FILES, PurePosixPath(run_dir), fence=Free())
    retention.snapshots(keep_latest_k=2)
    retention.checkpoints(pinned=(), keep_top_k=0, score=lambda manifest: None)
    retention.sweep()
    trees = {r.path for r in plan if not r.path.startswith("segments/")}
    assert trees and all(not (run_dir / path).exists() for path in trees)
    gone = {path for path in before if not (run_dir / path).exists()}
    assert {path for path in gone if not any(path.startswith(f"{t}/") for t in trees)} == trees
    assert [(r.by, r.bytes, r.frees) for r in plan if r.path.endswith("tmp_000099")] == [
        ("sweep", 100, 100)
    ]
    # Rows that a standing cut still names are not counted as freed.
    old = next(r for r in plan if r.path.endswith("snapshot_000003"))
    assert old.frees < old.bytes
