"""S1, S4, S7 offline: the audit accepts honest lineages, and names damaged and foreign files."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from outlast.durable.audit import AuditReport, audit_run
from outlast.durable.cuts import peek_cut, read_chain
from outlast.durable.files import PosixFiles
from outlast.durable.listing import read_run
from outlast.durable.manifest import IncarnationRecord
from outlast.durable.sealed import seal, unseal
from outlast.errors import CorruptData
from outlast.model.cursor import DatasetOrder
from outlast.model.cut import LogPosition
from outlast.model.ids import Step
from outlast.model.journal import Applied, JournalRecord, Replayed
from tests.durable import lives
from tests.durable.lives import FILES, Life, typical

ORDER = DatasetOrder(seed=lives.plan().seed, size=lives.DATASET_SIZE)


def audit(path: Path) -> AuditReport:
    return audit_run(FILES, PurePosixPath(path))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Life]:
    path = tmp_path_factory.mktemp("audit") / "run"
    path.mkdir()
    return path, typical(path)


@pytest.fixture
def run(original: tuple[Path, Life], tmp_path: Path) -> Path:
    """A private copy of the typical run."""
    return Path(shutil.copytree(original[0], tmp_path / "run"))


# --- honest runs ----------------------------------------------------------------------------------


def test_S4_three_lives_add_up(run: Path, original: tuple[Path, Life]) -> None:
    last = original[1]
    report = audit(run)
    assert report.violations == ()
    assert report.ok
    assert report.drawn == last.state.cut(sequence=last.at, parent=None, anchor=last.anchor).drawn
    assert (report.trained, report.dropped) == (8, 1)
    assert report.dropped_by_reason == {"gave_up": 1}
    assert report.drawn == report.trained + report.dropped + report.outstanding
    assert (report.skipped, report.repeated) == (0, 0)
    assert report.trainer_version == 4
    assert report.history == last.state.history


def test_the_account_names_every_life(run: Path) -> None:
    first, second, third = audit(run).incarnations
    assert (first.steps, first.trained, first.dropped) == (1, 2, 1)  # its second step is void
    assert first.restored_from is None and first.ended is None
    assert (second.restored_from, second.steps, second.first_step) == (2, 1, 2)
    assert second.ended == "preempted"
    assert (third.steps, third.trained, third.counts) == (2, 4, True)


def test_the_restored_cut_may_have_been_retained_away(run: Path) -> None:
    for old in sorted((run / "snapshots").iterdir())[:-1]:
        shutil.rmtree(old)
    for old in sorted(run.glob("step_*"))[:-1]:
        shutil.rmtree(old)
    report = audit(run)
    assert report.ok and report.trained == 8


def test_a_life_whose_cuts_are_damaged_is_void(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.admit(3)
    first.snapshot()
    second = Life(tmp_path)
    second.step()
    second.snapshot()
    (tmp_path / "snapshots" / "snapshot_000002" / "state.json.zst").write_bytes(b"rot")
    third = Life(tmp_path)  # falls back to the cut of the first life
    third.step()
    third.snapshot()
    report = audit(tmp_path)
    assert report.ok
    assert [life.counts for life in report.incarnations] == [True, False, True]
    assert report.trained == 2
    assert [name for name, _ in report.rejected] == ["snapshot_000002"]


def test_a_run_that_published_nothing_has_nothing_to_answer_for(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.step()
    report = audit(tmp_path)
    assert report.ok and report.cut is None
    assert (report.drawn, report.trained) == (0, 0)
    assert [life.counts for life in report.incarnations] == [False]


def test_an_empty_directory_is_empty(tmp_path: Path) -> None:
    report = audit(tmp_path / "nothing")
    assert report.ok and report.run is None and report.incarnations == ()


def test_applied_steps_in_the_cut_are_computed_again(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.step()
    life.checkpoint()
    life.step()
    life.snapshot()  # above its anchor: the cut still knows the rows of step 2
    report = audit(tmp_path)
    assert report.ok and report.trained == 4


def test_a_replayed_step_is_not_trained_twice(tmp_path: Path) -> None:
    def with_replay(record: JournalRecord) -> Sequence[JournalRecord]:
        if isinstance(record, Applied) and record.step == 3:
            return (Replayed(step=Step(2), outcome={"loss": 0.5}), record)
        return (record,)

    typical(tmp_path, with_replay)
    report = audit(tmp_path)
    assert report.ok and report.trained == 8
    assert [life.replayed for life in report.incarnations] == [0, 0, 1]


def test_lives_that_replay_step_by_step_train_nothing_twice(tmp_path: Path) -> None:
    first = Life(tmp_path)
    for _ in range(3):
        first.step()
    first.snapshot()  # at version 3, above the bootstrap anchor
    second = Life(tmp_path)
    second.replay()
    second.checkpoint()  # of version 1, steps 2 and 3 still to come
    report = audit(tmp_path)
    assert report.violations == ()
    assert (report.cut, report.trainer_version, report.trained) == ("step_000001", 1, 6)
    third = Life(tmp_path)
    third.replay()
    third.replay()
    third.step()
    third.snapshot()
    report = audit(tmp_path)
    assert report.violations == ()
    assert (report.trainer_version, report.trained) == (4, 8)
    assert [life.replayed for life in report.incarnations] == [0, 1, 2]


def test_the_audit_changes_nothing(run: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    audit(run)
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


# --- damaged and foreign files --------------------------------------------------------------------


def test_a_log_cut_short(run: Path) -> None:
    log = run / "consumption" / "inc_000001.log"
    log.write_bytes(log.read_bytes()[:40])
    report = audit(run)
    assert not report.ok
    assert any("the cut names" in line for line in report.violations)


def test_a_flipped_byte_in_a_log(run: Path) -> None:
    log = run / "consumption" / "inc_000002.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    report = audit(run)
    assert not report.ok
    assert any(line.startswith("incarnation 2:") for line in report.violations)


def test_a_log_that_is_gone(run: Path) -> None:
    (run / "consumption" / "inc_000001.log").unlink()
    assert any("is missing" in line for line in audit(run).violations)


def test_bytes_beyond_the_cut_are_void(run: Path) -> None:
    for log in (run / "consumption").iterdir():
        log.write_bytes(log.read_bytes() + b"torn tail")
    assert audit(run).ok


def test_a_flipped_byte_makes_the_audit_judge_the_cut_before(run: Path) -> None:
    path = run / "snapshots" / "snapshot_000007" / "state.json.zst"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    report = audit(run)
    assert report.ok and report.cut == "step_000004"
    assert [name for name, _ in report.rejected] == ["snapshot_000007"]


def test_a_cut_that_is_retained_while_it_is_read_is_not_damage(run: Path) -> None:
    class Retaining(PosixFiles):
        """A live run removes the newest snapshot just after it was listed."""

        def read(self, path: PurePosixPath, /) -> bytes:
            if path.parent.name == "snapshot_000007" and path.name == "state.json.zst":
                shutil.rmtree(path.parent)
            return super().read(path)

    report = audit_run(Retaining(), PurePosixPath(run))
    assert report.ok and report.cut == "step_000004" and report.rejected == ()


@pytest.mark.parametrize("name", ["snapshot_000007", "step_000004"])
def test_a_quick_look_verifies_the_state_alone(run: Path, name: str) -> None:
    run_dir = PurePosixPath(run)
    listing = read_run(FILES, run_dir, verify="manifest")
    (found,) = [cut for cut in listing.cuts if cut.path.name == name]
    assert peek_cut(FILES, run_dir, found=found).trainer_version == 4
    (state,) = (run / found.path).rglob("state.json.zst")
    data = bytearray(state.read_bytes())
    data[100] ^= 1
    state.write_bytes(data)
    with pytest.raises(CorruptData, match=r"state\.json"):
        peek_cut(FILES, run_dir, found=found)


def test_an_incarnation_without_a_record(run: Path) -> None:
    listing = read_run(FILES, PurePosixPath(run), verify="manifest")
    blind = dataclasses.replace(listing, incarnations=listing.incarnations[1:])
    newest = max((c.manifest for c in listing.cuts if c.manifest), key=lambda m: m.sequence)
    with pytest.raises(CorruptData, match="incarnation 1 has no record"):
        read_chain(blind, newest)


def test_a_quick_look_refuses_what_has_no_manifest(run: Path) -> None:
    listing = read_run(FILES, PurePosixPath(run), verify="names")
    with pytest.raises(CorruptData, match="its manifest is unreadable"):
        peek_cut(FILES, PurePosixPath(run), found=listing.cuts[0])


def rewrite(path: Path, restored_log: LogPosition | None) -> None:
    """Forge what an incarnation says it restored, seal included."""
    record = unseal(path.read_bytes(), IncarnationRecord, where=str(path))
    path.write_bytes(seal(msgspec.structs.replace(record, restored_log=restored_log)))


def test_nothing_left_to_judge_is_a_violation(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.step()
    life.snapshot()
    (tmp_path / "snapshots" / "snapshot_000001" / "state.json.zst").write_bytes(b"rot")
    report = audit(tmp_path)
    assert not report.ok and report.cut is None
    assert any("none of 1 published cut" in line for line in report.violations)


def test_a_foreign_incarnation_in_the_lineage(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.admit(3)
    first.snapshot()
    second = Life(tmp_path)
    second.step()
    foreign = second.snapshot()
    shutil.rmtree(tmp_path / "snapshots" / "snapshot_000002")
    third = Life(tmp_path)
    third.step()
    third.snapshot()
    assert audit(tmp_path).ok
    rewrite(tmp_path / "incarnations" / "000003.json", foreign.log)
    report = audit(tmp_path)
    assert not report.ok and report.repeated == 2
    assert any("steps must be consecutive" in line for line in report.violations)


def test_a_lineage_with_a_hole(run: Path) -> None:
    for cut in ("snapshots/snapshot_000002", "snapshots/snapshot_000004"):
        shutil.rmtree(run / cut)
    rewrite(run / "incarnations" / "000003.json", None)
    report = audit(run)
    assert not report.ok
    assert any("neither the tree nor a log position" in line for line in report.violations)
