"""S1, S4, S7 offline: logs whose every digest is right and whose story is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import msgspec
import pytest

from outlast.durable import audit as audit_module
from outlast.durable.audit import AuditReport, audit_run
from outlast.model.cursor import DatasetOrder
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


def _dropped(group: int, *, name: int | None = None) -> Dropped:
    """A drop of draw `group`, under another number if `name` says so."""
    epoch, index = ORDER.at(group)
    return Dropped(
        group=GroupId(group if name is None else name),
        ref=PromptRef(dataset="toy", epoch=epoch, index=index),
        reason=DropReason.STALE,
        lengths=(),
        unfinished=0,
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


def test_S1_a_group_dropped_twice(tmp_path: Path) -> None:
    report = forged(lambda r: (r, r) if isinstance(r, Dropped) else (r,), tmp_path)
    assert report.repeated == 1 and report.dropped == 1
    assert any("was already dropped (gave_up)" in line for line in report.violations)


def test_S1_groups_without_prompts(tmp_path: Path) -> None:
    def short(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        return (replace(record, refs=record.refs[:1]),)

    report = forged(at_step(2, short), tmp_path)
    assert any("2 groups, 1 prompts" in line for line in report.violations)
    assert report.skipped == 1


def test_S4_a_group_that_no_draw_made(tmp_path: Path) -> None:
    report = forged(
        lambda r: (r, _dropped(0, name=-1)) if isinstance(r, Dropped) else (r,), tmp_path
    )
    assert any("no draw has this number" in line for line in report.violations)


def test_S4_a_group_beyond_the_last_draw(tmp_path: Path) -> None:
    report = forged(lambda r: (r, _dropped(99)) if isinstance(r, Dropped) else (r,), tmp_path)
    assert any("but only 11 were drawn" in line for line in report.violations)


def test_S1_the_cut_knows_a_step_that_the_log_tells_otherwise(tmp_path: Path) -> None:
    def lose(record: JournalRecord) -> Sequence[JournalRecord]:
        assert isinstance(record, Applied)
        return (replace(record, groups=record.groups[:1], refs=record.refs[:1]),)

    life = Life(tmp_path, at_step(1, lose))
    life.step()
    life.snapshot()
    report = audit(tmp_path)
    assert not report.ok and report.skipped == 1
    assert any(
        "is applied by step 1, but the logs say nothing" in line for line in report.violations
    )
    assert any("step 1 is recorded otherwise" in line for line in report.violations)


def test_S1_a_step_without_a_record(tmp_path: Path) -> None:
    life = Life(tmp_path, at_step(1, lambda record: ()))
    life.step()
    life.step()
    life.snapshot()
    report = audit(tmp_path)
    assert not report.ok and report.skipped == 2
    assert any("step 2: follows version 0" in line for line in report.violations)


def test_only_the_first_findings_are_kept_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "FINDINGS_MAX", 1)
    report = forged(at_step(1, lambda record: ()), tmp_path)
    assert len(report.violations) == 1 and report.violations_total > 1
