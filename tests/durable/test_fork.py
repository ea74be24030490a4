"""Forks: a new run from any cut, whole, private, audited; the old one untouched; and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from outlast.durable import lock
from outlast.durable.audit import audit_run
from outlast.durable.cutcodec import LoadedCut, load_cut
from outlast.durable.cuts import newest_cut
from outlast.durable.fork import Forked, fork_run
from outlast.durable.forkcut import Terms
from outlast.durable.listing import read_run
from outlast.durable.manifest import FoundCut
from outlast.durable.segmentfile import read_saved
from outlast.errors import CorruptData, DiskFull, FingerprintMismatch, NotRestorable
from outlast.rows import row_digest
from tests.durable.lives import FILES, PER_STEP, world
from tests.durable.row_lives import IDENTITIES, RowLife, busy, fingerprint


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fork") / "run"
    busy(path)
    return path


@pytest.fixture
def run_dir(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "run"))


def image(path: Path) -> dict[str, bytes]:
    files = (file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def cut_named(path: Path, name: str) -> FoundCut:
    listing = read_run(FILES, PurePosixPath(path), verify="manifest")
    return next(found for found in listing.cuts if found.path.name == name)


def fork(path: Path, name: str, terms: Terms | None = None) -> Forked:
    return fork_run(
        FILES,
        PurePosixPath(path),
        new_dir=PurePosixPath(path.parent / "new"),
        found=cut_named(path, name),
        world=world(),
        terms=terms,
    )


def loaded(path: Path) -> LoadedCut:
    run_dir = PurePosixPath(path)
    found = newest_cut(FILES, run_dir, listing=read_run(FILES, run_dir, verify="manifest")).loaded
    assert found is not None
    return found


def terms(*overrides: str, sampler: str = "windowed", prompts: int = PER_STEP) -> Terms:
    given = fingerprint(*overrides)
    return Terms(fingerprint=given, recipe=b"seed: 3\n", sampler=sampler, prompts_per_step=prompts)


def test_P2_a_fork_goes_on_from_the_cut_and_audits_from_the_first_draw(run_dir: Path) -> None:
    before = image(run_dir)
    made = fork(run_dir, "snapshot_000003")
    assert image(run_dir) == before
    assert (made.trainer_version, made.anchor, made.steps_to_replay) == (3, "step_1", 2)
    new, old = loaded(run_dir.parent / "new"), loaded(run_dir)
    assert new.directory.name == made.cut and new.manifest.run == made.run != old.manifest.run
    assert new.cut.groups == old.cut.groups and new.cut.applied_steps == old.cut.applied_steps
    assert new.cut.history == old.cut.history and new.cut.cursor == old.cut.cursor
    report = audit_run(FILES, PurePosixPath(run_dir.parent / "new"))
    assert report.ok and report.run == made.run
    assert (report.trained, report.dropped) == (3 * PER_STEP, 1)
    assert [life.ended for life in report.incarnations][-1] == "forked"


def test_A1_rows_and_prefixes_of_a_fork_are_those_of_the_cut(run_dir: Path) -> None:
    fork(run_dir, "snapshot_000003")
    new, old = loaded(run_dir.parent / "new"), loaded(run_dir)
    rows, ours = read_saved(FILES, old.rows).rows, read_saved(FILES, new.rows).rows
    assert {k: row_digest(r) for k, r in ours.items()} == {
        k: row_digest(r) for k, r in rows.items()
    }
    assert [r.response_ids.tolist() for r in new.prefixes] == [
        r.response_ids.tolist() for r in old.prefixes
    ]
    assert len(new.prefixes) == 1 and read_saved(FILES, new.rows).index.private


def test_no_file_of_a_fork_shares_its_inode(run_dir: Path) -> None:
    fork(run_dir, "snapshot_000003")
    files = [file for file in (run_dir.parent / "new").rglob("*") if file.is_file()]
    assert files and all(file.stat().st_nlink == 1 for file in files)
    assert not (run_dir.parent / "new.forking").exists()


def test_S7_the_fork_of_a_fork_and_its_own_lives_audit_clean(run_dir: Path) -> None:
    fork(run_dir, "snapshot_000003")
    new = run_dir.parent / "new"
    life = RowLife(new)
    assert life.number == 4 and len(life.state.steps.to_replay) == 2
    life.replay()
    life.replay()
    life.step()
    life.snapshot()
    assert audit_run(FILES, PurePosixPath(new)).ok
    target = run_dir.parent / "again"
    name = loaded(new).directory.name
    made = fork_run(
        FILES,
        PurePosixPath(new),
        new_dir=PurePosixPath(target),
        found=cut_named(new, name),
        world=world(),
    )
    report = audit_run(FILES, PurePosixPath(target))
    assert report.ok and report.trained == 4 * PER_STEP and made.trainer_version == 4


def test_a_trainer_checkpoint_is_forked_as_one(run_dir: Path) -> None:
    made = fork(run_dir, "step_000001")
    new = run_dir.parent / "new"
    assert made.cut == "step_000001" and made.steps_to_replay == 0
    shard = Path("step_000001") / "trainer" / "deep" / "weights.bin"
    assert (new / shard).read_bytes() == (run_dir / shard).read_bytes()
    assert loaded(new).manifest.metrics == {"reward": 0.5}
    assert audit_run(FILES, PurePosixPath(new)).trained == PER_STEP


def test_an_older_cut_leaves_what_came_later_behind(run_dir: Path) -> None:
    made = fork(run_dir, "snapshot_000002")
    report = audit_run(FILES, PurePosixPath(run_dir.parent / "new"))
    assert (made.trainer_version, made.anchor, made.cut) == (1, "step_1", "step_000001")
    assert report.ok and (report.trained, report.dropped) == (PER_STEP, 1)


def test_a_foreign_cut_can_be_forked(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    first = RowLife(path)
    first.finish(first.admit(1)[0])
    first.snapshot()
    second = RowLife(path)
    second.step()
    second.snapshot()
    marker = path / "snapshots" / "snapshot_000002" / "COMMITTED"
    kept = marker.read_bytes()
    marker.write_bytes(b"unreadable for a while")
    third = RowLife(path)
    marker.write_bytes(kept)
    third.snapshot()
    made = fork(path, "snapshot_000002")
    report = audit_run(FILES, PurePosixPath(tmp_path / "new"))
    assert report.ok and report.trained == PER_STEP and made.trainer_version == 1
    assert [life.incarnation for life in report.incarnations] == [1, 2, 3]
    assert report.incarnations[-1].ended == "forked"


def test_without_rollouts_every_outstanding_prompt_is_drawn_again(run_dir: Path) -> None:
    old = load_cut(FILES, PurePosixPath(run_dir), found=cut_named(run_dir, "step_000001")).cut
    made = fork(
        run_dir,
        "step_000001",
        terms("generation.temperature=0.5", sampler="in_order", prompts=3),
    )
    new = loaded(run_dir.parent / "new")
    assert (made.groups, made.siblings, made.reserve) == (0, 0, len(old.groups))
    assert [s.id for s in new.cut.reserve] == [g.id for g in old.groups]
    assert [s.prompt for s in new.cut.reserve] == [g.prompt for g in old.groups]
    assert new.cut.cursor == old.cursor and new.cut.history == old.history
    sampler = new.cut.sampler
    assert (sampler.name, sampler.admitted, sampler.batches) == ("in_order", 3, 1)
    assert new.manifest.fingerprint == fingerprint("generation.temperature=0.5").digest
    assert audit_run(FILES, PurePosixPath(run_dir.parent / "new")).ok


def test_without_rollouts_a_cut_above_its_checkpoint_is_refused(run_dir: Path) -> None:
    with pytest.raises(NotRestorable, match=r"steps 2 to 3 .* Fork at a trainer checkpoint"):
        fork(run_dir, "snapshot_000003", terms())
    assert not (run_dir.parent / "new").exists()


@pytest.mark.parametrize("change", ["seed=4", "model"])
def test_weights_and_cursor_keep_their_meaning(run_dir: Path, change: str) -> None:
    other = terms(change) if "=" in change else None
    if other is None:
        import msgspec

        swapped = msgspec.structs.replace(IDENTITIES, model="another")
        other = Terms(
            fingerprint=fingerprint(identities=swapped),
            recipe=b"",
            sampler="windowed",
            prompts_per_step=2,
        )
    with pytest.raises(FingerprintMismatch, match="another meaning"):
        fork(run_dir, "step_000001", other)


# ----------------------------------------------------------------------------------- refusals


def occupied(run_dir: Path) -> None:
    (run_dir.parent / "new").mkdir()
    (run_dir.parent / "new" / "notes.txt").write_text("mine")


def corrupt_rows(run_dir: Path) -> None:
    segment = next((run_dir / "snapshots" / "snapshot_000003" / "rows").glob("seg_*"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.unlink()  # its inode is shared with segments/
    segment.write_bytes(data)


def no_anchor(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "step_000001")


def flipped_anchor(run_dir: Path) -> None:
    shard = run_dir / "step_000001" / "trainer" / "deep" / "weights.bin"
    shard.write_bytes(b"v" + shard.read_bytes()[1:])


def torn_log(run_dir: Path) -> None:
    log = run_dir / "consumption" / "inc_000001.log"
    log.write_bytes(log.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "error", "words"),
    [
        (occupied, NotRestorable, "notes.txt; required: an empty directory"),
        (corrupt_rows, CorruptData, "Fork at another cut"),
        (no_anchor, NotRestorable, "its anchor step_1 does not exist"),
        (flipped_anchor, NotRestorable, "its anchor step_1 is corrupt"),
        (torn_log, CorruptData, "inc_000001.log"),
    ],
)
def test_P4_a_refused_fork_leaves_both_sides_as_they_were(
    run_dir: Path, damage: Callable[[Path], None], error: type[Exception], words: str
) -> None:
    damage(run_dir)
    before = image(run_dir.parent)
    with pytest.raises(error, match=words):
        fork(run_dir, "snapshot_000003")
    assert image(run_dir.parent) == before


def test_a_full_disk_leaves_nothing_behind(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlast.durable.snapshots import Publisher

    def full(*args: object, **kwargs: object) -> None:
        raise DiskFull("no space")

    monkeypatch.setattr(Publisher, "publish_snapshot", full)
    with pytest.raises(DiskFull):
        fork(run_dir, "snapshot_000003")
    assert sorted(path.name for path in run_dir.parent.iterdir()) == ["run"]


def test_what_a_killed_fork_left_is_cleared_away(run_dir: Path) -> None:
    left = run_dir.parent / "new.forking"
    (left / "unfinished" / "snapshots").mkdir(parents=True)
    (left / "lock").write_text("torn")
    fork(run_dir, "snapshot_000003")
    assert sorted(path.name for path in run_dir.parent.iterdir()) == ["new", "run"]


def test_P4_a_scaffold_with_anything_else_inside_is_left_alone(run_dir: Path) -> None:
    (run_dir.parent / "new.forking").mkdir()
    (run_dir.parent / "new.forking" / "notes.txt").write_text("mine")
    before = image(run_dir.parent)
    with pytest.raises(NotRestorable, match=r"new\.forking holds notes\.txt; .* Move it away"):
        fork(run_dir, "snapshot_000003")
    assert image(run_dir.parent) == before


def test_a_scaffold_of_another_host_is_named_and_left_alone(run_dir: Path) -> None:
    left = run_dir.parent / "new.forking"
    left.mkdir()
    content = {"host": "far", "pid": 7, "incarnation": None, "heartbeat": 0.0}
    (left / "lock").write_text(json.dumps(content))
    with pytest.raises(NotRestorable, match=r"pid 7 on host far.*If that process is gone, remove"):
        fork(run_dir, "snapshot_000003")
    assert left.exists() and not (run_dir.parent / "new").exists()


def test_a_fork_that_is_being_made_is_waited_for(run_dir: Path) -> None:
    left = PurePosixPath(run_dir.parent / "new.forking")
    FILES.mkdir(left)
    held = lock.acquire(FILES, left, world=world())
    with pytest.raises(NotRestorable, match="is being filled by pid 1 on host test"):
        fork(run_dir, "snapshot_000003")
    held.release()
    fork(run_dir, "snapshot_000003")
