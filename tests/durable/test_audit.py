"""S1, S4, S7 offline: the audit accepts honest lineages and names every kind of lie."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from outlast.durable.audit import AuditReport, audit_run
from outlast.durable.manifest import IncarnationRecord
from outlast.durable.sealed import seal, unseal
from outlast.model.cursor import DatasetOrder
from outlast.model.cut import LogPosition
from outlast.model.groups import DropReason, PromptRef
from outlast.model.ids import GroupId, Step
from outlast.model.journal import Applied, Dropped, JournalRecord, Replayed
from tests.durable import lives
from tests.durable.lives import FILES, Life, Rule, typical

ORDER = DatasetOrder(seed=lives.plan().seed, size=lives.DATASET_SIZE)


def audit(path: Path) -> AuditReport:
    return audit_run(FILES, PurePosixPath(path))


def forged(rule: Rule, path: Path) -> AuditReport:
    """Audit of the typical run as `rule` would have logged it."""
    typical(path, rule)
    report = audit(path)
    assert not report.ok
    assert report.violations and report.violations_total >= len(report.violations)
    return report


def at_step(step: int, change: Rule) -> Rule:
    """Apply `change` to the record of one optimizer step."""

    def rule(record: JournalRecord) -> Sequence[JournalRecord]:
        hit = isinstance(record, Applied) and record.step == step
        return change(record) if hit else (record,)

    return rule


def replace(record: JournalRecord, **fields: object) -> JournalRecord:
    return msgspec.structs.replace(record, **fields)


# --- honest runs ----------------------------------------------------------------------------------


def test_S4_three_lives_add_up(tmp_path: Path) -> None:
    last = typical(tmp_path)
    report = audit(tmp_path)
    assert report.violations == ()
    assert report.ok
    assert report.drawn == last.state.cut(sequence=last.at, parent=None, anchor=last.anchor).drawn
    assert (report.trained, report.dropped) == (8, 1)
    assert report.dropped_by_reason == {"gave_up": 1}
    assert report.drawn == report.trained + report.dropped + report.outstanding
    assert (report.skipped, report.repeated) == (0, 0)
    assert report.trainer_version == 4
    assert report.history == last.state.history


def test_the_account_names_every_life(tmp_path: Path) -> None:
    typical(tmp_path)
    first, second, third = audit(tmp_path).incarnations
    assert (first.steps, first.trained, first.dropped) == (1, 2, 1)  # its second step is void
    assert first.restored_from is None and first.ended is None
    assert (second.restored_from, second.steps, second.first_step) == (2, 1, 2)
    assert second.ended == "preempted"
    assert (third.steps, third.trained, third.counts) == (2, 4, True)


def test_the_restored_cut_may_have_been_retained_away(tmp_path: Path) -> None:
    typical(tmp_path)
    for old in sorted((tmp_path / "snapshots").iterdir())[:-1]:
        shutil.rmtree(old)
    for old in sorted(tmp_path.glob("step_*"))[:-1]:
        shutil.rmtree(old)
    report = audit(tmp_path)
    assert report.ok and report.trained == 8


def test_a_life_whose_cuts_are_damaged_is_void(tmp_path: Path) -> None:
    first = Life(tmp_path)
    first.admit(3)
    first.snapshot()
    second = Life(tmp_path)
    second.step()
    second.snapshot()
    (tmp_path / "snapshots" / "snapshot_000002" / "state.json").write_bytes(b"rot")
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


def test_the_audit_changes_nothing(tmp_path: Path) -> None:
    typical(tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    audit(tmp_path)
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


# --- forged logs: every digest is right, the story is not ----------------------------------------


def test_S1_a_group_trained_twice(tmp_path: Path) -> None:
    seen: list[Applied] = []

    def again(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        groups = (*record.groups, GroupId(0))
        return (replace(record, groups=groups, refs=(*record.refs, seen[0].refs[0])),)

    def rule(record: JournalRecord) -> Sequence[JournalRecord]:
        if isinstance(record, Applied):
            seen.append(record)
        return at_step(3, again)(record)

    report = forged(rule, tmp_path)
    assert report.repeated == 1 and report.skipped == 0
    assert any("group 0: was already trained by step 1" in line for line in report.violations)


def test_S4_a_group_missing(tmp_path: Path) -> None:
    def lose(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        return (replace(record, groups=record.groups[:1], refs=record.refs[:1]),)

    report = forged(at_step(2, lose), tmp_path)
    assert (report.skipped, report.repeated) == (1, 0)
    assert any("neither trained nor dropped nor outstanding" in line for line in report.violations)


def test_S4_a_drop_that_left_no_record(tmp_path: Path) -> None:
    report = forged(lambda r: () if isinstance(r, Dropped) else (r,), tmp_path)
    assert report.skipped == 1
    assert any("counts {'gave_up': 1} dropped, the logs {}" in line for line in report.violations)


def test_S4_trained_although_outstanding(tmp_path: Path) -> None:
    life = Life(tmp_path, lambda r: (r, _dropped(3)) if isinstance(r, Applied) else (r,))
    life.admit(4)
    life.step()
    life.checkpoint()
    report = audit(tmp_path)
    assert not report.ok and report.repeated == 1
    assert any("group 3 is outstanding, yet dropped" in line for line in report.violations)


def _dropped(group: int) -> Dropped:
    epoch, index = ORDER.at(group)
    return Dropped(
        group=GroupId(group),
        ref=PromptRef(dataset="toy", epoch=epoch, index=index),
        reason=DropReason.STALE,
    )


def test_S4_another_prompt_than_was_drawn(tmp_path: Path) -> None:
    def swap(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        return (replace(record, refs=(lives.ref(1), *record.refs[1:])),)

    report = forged(at_step(2, swap), tmp_path)
    assert any("holds prompt (9, 1)" in line for line in report.violations)


def test_S4_prompts_of_two_datasets(tmp_path: Path) -> None:
    def other(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        refs = tuple(msgspec.structs.replace(r, dataset="other") for r in record.refs)
        return (replace(record, refs=refs),)

    report = forged(at_step(2, other), tmp_path)
    assert any("prompts of 2 datasets" in line for line in report.violations)


@pytest.mark.parametrize("shift", [-1, 1])
def test_S7_a_step_out_of_turn(tmp_path: Path, shift: int) -> None:
    def moved(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        return (replace(record, step=record.step + shift),)

    report = forged(at_step(3, moved), tmp_path)
    assert any("steps must be consecutive" in line for line in report.violations)


def test_S7_a_history_that_the_checkpoints_do_not_know(tmp_path: Path) -> None:
    report = forged(at_step(3, lambda r: (replace(r, history="ab" * 32),)), tmp_path)
    assert any("step_000003: history" in line for line in report.violations)


def test_S7_rows_that_give_another_history(tmp_path: Path) -> None:
    life = Life(tmp_path, at_step(1, lambda r: (replace(r, history="cd" * 32),)))
    life.step()
    life.snapshot()
    report = audit(tmp_path)
    assert not report.ok
    assert any("rows and groups give history" in line for line in report.violations)


def test_S1_a_replay_of_what_never_happened(tmp_path: Path) -> None:
    ghost = Replayed(step=Step(9), outcome={})
    report = forged(at_step(2, lambda r: (r, ghost)), tmp_path)
    assert any("replayed step 9, which nobody applied" in line for line in report.violations)


# --- damaged and foreign files --------------------------------------------------------------------


def test_a_log_cut_short(tmp_path: Path) -> None:
    typical(tmp_path)
    log = tmp_path / "consumption" / "inc_000001.log"
    log.write_bytes(log.read_bytes()[:40])
    report = audit(tmp_path)
    assert not report.ok
    assert any("the cut names" in line for line in report.violations)


def test_a_flipped_byte_in_a_log(tmp_path: Path) -> None:
    typical(tmp_path)
    log = tmp_path / "consumption" / "inc_000002.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    report = audit(tmp_path)
    assert not report.ok
    assert any(line.startswith("incarnation 2:") for line in report.violations)


def test_a_log_that_is_gone(tmp_path: Path) -> None:
    typical(tmp_path)
    (tmp_path / "consumption" / "inc_000001.log").unlink()
    assert any("is missing" in line for line in audit(tmp_path).violations)


def test_bytes_beyond_the_cut_are_void(tmp_path: Path) -> None:
    typical(tmp_path)
    for log in (tmp_path / "consumption").iterdir():
        log.write_bytes(log.read_bytes() + b"torn tail")
    assert audit(tmp_path).ok


def rewrite(path: Path, restored_log: LogPosition | None) -> None:
    """Forge what an incarnation says it restored, seal included."""
    record = unseal(path.read_bytes(), IncarnationRecord, where=str(path))
    path.write_bytes(seal(msgspec.structs.replace(record, restored_log=restored_log)))


def test_nothing_left_to_judge_is_a_violation(tmp_path: Path) -> None:
    life = Life(tmp_path)
    life.step()
    life.snapshot()
    (tmp_path / "snapshots" / "snapshot_000001" / "state.json").write_bytes(b"rot")
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


def test_a_lineage_with_a_hole(tmp_path: Path) -> None:
    typical(tmp_path)
    for cut in ("snapshots/snapshot_000002", "snapshots/snapshot_000004"):
        shutil.rmtree(tmp_path / cut)
    rewrite(tmp_path / "incarnations" / "000003.json", None)
    report = audit(tmp_path)
    assert not report.ok
    assert any("neither the tree nor a log position" in line for line in report.violations)
