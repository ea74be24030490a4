"""Rules of the restore planner beyond the table: order, anchors, fingerprints, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from outlast.durable.fingerprint import Fingerprint
from outlast.durable.manifest import FoundCut, RunRecord
from outlast.durable.restore import Fresh, Inspector, Rejection, RestoreMode, Resume, plan_restore
from outlast.errors import (
    CorruptData,
    DiskError,
    FingerprintMismatch,
    ForeignRun,
    NotRestorable,
    UnsupportedFormat,
)
from tests.durable import scenes
from tests.durable.scenes import BOOTSTRAP, TODAY, Disk, end, life, listing, snapshot, step

CHECKPOINT = RestoreMode.TRAINER_CHECKPOINT


def resumed(plan: object) -> Resume:
    assert isinstance(plan, Resume)
    return plan


def edited(cut: FoundCut, **changes: Any) -> FoundCut:
    assert cut.manifest is not None
    return dataclasses.replace(cut, manifest=msgspec.structs.replace(cut.manifest, **changes))


def test_newest_is_by_integer_sequence() -> None:
    plan = resumed(Disk().plan(listing(snapshot(10), snapshot(9), snapshot(100), snapshot(99))))
    assert plan.manifest.sequence == 100


def test_a_bundled_cut_and_snapshots_are_ordered_together() -> None:
    plan = resumed(Disk().plan(listing(snapshot(3), step(1, 4), snapshot(5, 1), step(2, 6))))
    assert str(plan.cut.path) == "step_000002"
    assert plan.anchor_tree is plan.cut


def test_candidates_are_verified_lazily_newest_first() -> None:
    disk = Disk(rotten={"snapshots/snapshot_000003": "row 4 differs"})
    plan = resumed(disk.plan(listing(snapshot(1), snapshot(2), snapshot(3))))
    assert plan.manifest.sequence == 2
    assert [str(item) for item in plan.rejected] == [
        "snapshots/snapshot_000003: corrupt: row 4 differs"
    ]
    assert disk.asked == ["snapshots/snapshot_000003", "snapshots/snapshot_000002"]


def test_a_tree_is_verified_once_even_as_anchor_of_many() -> None:
    disk = Disk(rotten={"step_000001": "bad shard"})
    with pytest.raises(NotRestorable, match="bad shard"):
        disk.plan(listing(step(1, 1), snapshot(2, 1), snapshot(3, 1)))
    assert disk.asked.count("step_000001") == 1


def test_an_unreadable_disk_stops_the_start() -> None:
    def fail(cut: FoundCut) -> str | None:
        raise DiskError(f"{cut.path}: input/output error")

    with pytest.raises(DiskError, match="input/output error"):
        plan_restore(
            listing(snapshot(1)),
            mode=RestoreMode.LATEST,
            fingerprint=TODAY,
            inspect=Inspector(verify=fail, fingerprint=Disk().read),
        )


def test_an_unreadable_manifest_is_corrupt_and_never_silently_fresh() -> None:
    lost = dataclasses.replace(snapshot(1), manifest=None)
    with pytest.raises(NotRestorable, match="its manifest is unreadable"):
        Disk().plan(listing(lost))


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        (dataclasses.replace(snapshot(5), number=6), "its manifest is of snapshot 5"),
        (dataclasses.replace(step(2, 5), number=3), "its manifest is of trainer_checkpoint 2"),
        (
            edited(step(2, 5), anchor=scenes.anchor(1)),
            "its manifest says that its anchor is step_1",
        ),
        (snapshot(5, 1, base=2), "trainer version 1 lies below its anchor step_2"),
        (edited(snapshot(5, 1), history="f" * 64), "its history differs from its anchor's"),
        (
            edited(
                snapshot(5, 0), anchor=msgspec.structs.replace(scenes.anchor(0), history="e" * 64)
            ),
            "its history differs from its anchor's at trainer version 0",
        ),
        (
            edited(
                snapshot(5, 1),
                anchor=msgspec.structs.replace(
                    scenes.anchor(0), version=1, history=scenes.history(1)
                ),
            ),
            "its bootstrap anchor claims trainer version 1",
        ),
    ],
)
def test_a_manifest_that_contradicts_its_name_or_itself_is_corrupt(
    cut: FoundCut, reason: str
) -> None:
    plan = resumed(Disk().plan(listing(snapshot(1), cut)))
    assert plan.manifest.sequence == 1
    assert plan.rejected[0].why is Rejection.CORRUPT
    assert reason in plan.rejected[0].reason


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ((), "its anchor step_2 does not exist"),
        ((step(2, 4, past="a" * 64),), "its anchor step_2 has history aaaaaaaaaaaa, required"),
        ((step(2, 4, run="run-b"),), "its anchor step_2 is of another run (run-b)"),
        (
            (dataclasses.replace(step(2, 4), manifest=None, defect="no marker"),),
            "its anchor step_2 is corrupt: no marker",
        ),
        (
            (dataclasses.replace(step(2, 4), manifest=None),),
            "its anchor step_2 is corrupt: unreadable manifest",
        ),
    ],
)
def test_a_snapshot_without_its_whole_anchor_is_passed_over(
    others: tuple[FoundCut, ...], reason: str
) -> None:
    plan = resumed(Disk().plan(listing(step(1, 2), snapshot(3, 1), snapshot(5, 2), *others)))
    assert plan.manifest.sequence in (3, 4)
    reasons = [item.reason for item in plan.rejected]
    if plan.manifest.sequence == 3:
        assert any(reason in found for found in reasons)
    else:  # the checkpoint of another history is itself restorable, the snapshot is not
        assert others[0].manifest is not None and reason in reasons[0]


def test_a_snapshot_is_restored_onto_a_checkpoint_that_became_durable_after_it() -> None:
    plan = resumed(Disk().plan(listing(step(1, 2), snapshot(5, 2, base=1), step(2, 4))))
    assert (plan.manifest.sequence, str(plan.anchor), plan.steps_to_replay) == (5, "step_2", 0)


def test_steps_above_the_anchor_are_replayed_only_where_allowed() -> None:
    held = listing(step(1, 2), snapshot(5, 3, base=1))
    plan = resumed(Disk().plan(held))
    assert plan.manifest.sequence == 2
    assert plan.rejected[0].reason == (
        "its anchor step_3 does not exist, and from step_1 2 steps would have to be replayed "
        "(at most 0 are allowed)"
    )
    plan = resumed(Disk().plan(held, max_replay_steps=2))
    assert (plan.manifest.sequence, str(plan.anchor), plan.steps_to_replay) == (5, "step_1", 2)
    plan = resumed(Disk().plan(listing(snapshot(5, 2, base=0)), max_replay_steps=2))
    assert (str(plan.anchor), plan.anchor_tree, plan.steps_to_replay) == ("bootstrap", None, 2)


def test_a_bootstrap_anchor_must_be_the_model_that_is_given() -> None:
    other = msgspec.structs.replace(BOOTSTRAP, model="model-2")
    with pytest.raises(NotRestorable, match=r"names model model-2 .* given are model-1"):
        Disk().plan(listing(snapshot(1), bootstrap=other))
    other = msgspec.structs.replace(BOOTSTRAP, format=2)
    with pytest.raises(UnsupportedFormat, match=r"bootstrap/anchor\.json has format 2"):
        Disk().plan(listing(snapshot(1), bootstrap=other))


# --- lineage --------------------------------------------------------------------------------------


def test_a_restart_that_published_nothing_leaves_the_lineage_where_it_was() -> None:
    lives = [life(1), life(2, first=4, restored=3), life(3, first=4, restored=3)]
    plan = resumed(Disk().plan(listing(snapshot(2), snapshot(3), lives=lives)))
    assert plan.manifest.sequence == 3


def test_cuts_beyond_the_restored_one_are_foreign_for_good() -> None:
    cuts = [snapshot(3), snapshot(4), snapshot(5, incarnation=2), snapshot(6, incarnation=3)]
    lives = [life(1), life(2, first=5, restored=3), life(3, first=6, restored=3)]
    plan = resumed(Disk().plan(listing(*cuts[:3], lives=lives)))
    assert plan.manifest.sequence == 3
    assert {str(item) for item in plan.rejected} == {
        "snapshots/snapshot_000004: foreign: cut 4 of incarnation 1, whose successor went on "
        "from cut 3",
        "snapshots/snapshot_000005: foreign: published by incarnation 2, which no later one "
        "continued",
    }
    assert resumed(Disk().plan(listing(*cuts, lives=lives))).manifest.sequence == 6


def test_only_foreign_cuts_of_this_run_are_refused_not_started_over() -> None:
    lives = [life(1), life(2, first=3, restored=1)]
    with pytest.raises(NotRestorable, match="whose successor went on from cut 1"):
        Disk().plan(listing(snapshot(2), lives=lives))


def test_a_cut_of_an_unknown_incarnation_is_foreign() -> None:
    with pytest.raises(NotRestorable, match="published by incarnation 1"):
        Disk().plan(listing(snapshot(2), lives=[]))
    with pytest.raises(NotRestorable, match="published by incarnation 1"):
        Disk().plan(listing(snapshot(2), lives=[life(2, first=5, restored=2)]))


# --- fingerprint ----------------------------------------------------------------------------------

HOT = scenes.fingerprint("generation.temperature=0.5")
SLOW = scenes.fingerprint("training.learning_rate=1e-6")


@pytest.mark.parametrize(
    ("cuts", "mode"),
    [
        ((snapshot(1),), RestoreMode.LATEST),
        ((step(1, 1),), RestoreMode.LATEST),
        ((step(1, 1),), CHECKPOINT),
        ((step(1, 1), snapshot(2, 1)), RestoreMode.LATEST),
        ((step(1, 1), snapshot(2, 1)), CHECKPOINT),
    ],
)
def test_changed_semantics_are_refused_for_every_anchor_and_mode(
    cuts: tuple[FoundCut, ...], mode: RestoreMode
) -> None:
    with pytest.raises(FingerprintMismatch) as caught:
        Disk().plan(listing(*cuts), mode, current=HOT)
    text = str(caught.value)
    assert "generation.temperature (semantic): 1.0 -> 0.5. Set it back to 1.0" in text
    assert "was made under another recipe: 1 field differs" in text


def test_a_mismatch_names_the_newest_and_lists_what_else_was_passed_over() -> None:
    disk = Disk(rotten={"snapshots/snapshot_000003": "gone bad"})
    with pytest.raises(FingerprintMismatch) as caught:
        disk.plan(listing(snapshot(1), snapshot(2), snapshot(3)), current=HOT)
    text = str(caught.value)
    assert text.startswith("snapshots/snapshot_000002 was made under another recipe")
    assert "snapshots/snapshot_000003: corrupt: gone bad" in text
    assert "snapshot_000001: incompatible: made under another recipe: generation.temp" in text


def test_an_older_cut_of_the_current_recipe_is_used_and_the_newer_noted() -> None:
    disk = Disk(stored=(TODAY, HOT))
    plan = resumed(disk.plan(listing(snapshot(1), snapshot(2, under=HOT))))
    assert plan.manifest.sequence == 1
    assert plan.rejected[0].why is Rejection.INCOMPATIBLE


def test_a_training_change_is_accepted_unless_a_step_is_replayed() -> None:
    plan = resumed(Disk().plan(listing(step(1, 1)), current=SLOW))
    assert [change.dotpath for change in plan.changes] == ["training.learning_rate"]
    held = listing(snapshot(5, 1, base=0))
    with pytest.raises(FingerprintMismatch, match="needs no step replayed"):
        Disk().plan(held, current=SLOW, max_replay_steps=1)


def test_a_stored_projection_that_is_not_the_manifest_s_is_corrupt() -> None:
    def swapped(cut: FoundCut) -> Fingerprint:
        return HOT

    def broken(cut: FoundCut) -> Fingerprint:
        raise CorruptData(f"{cut.path}/fingerprint.json is not valid")

    for read, reason in ((swapped, "its fingerprint.json has digest"), (broken, "is not valid")):
        with pytest.raises(NotRestorable, match=reason):
            plan_restore(
                listing(snapshot(1)),
                mode=RestoreMode.LATEST,
                fingerprint=SLOW,
                inspect=Inspector(verify=Disk().verify, fingerprint=read),
            )


# --- nothing to restore, and refusals -------------------------------------------------------------


def test_an_empty_directory_starts_fresh_in_both_modes() -> None:
    for mode in RestoreMode:
        for fresh in (False, True):
            empty = listing(run=None, lives=(), bootstrap=None)
            assert isinstance(Disk().plan(empty, mode, fresh=fresh), Fresh)


def test_lives_that_published_nothing_start_fresh() -> None:
    held = listing(lives=[life(1), life(2)], ends=[end(1, None)], debris=["snapshots/tmp_000001"])
    plan = Disk().plan(held)
    assert isinstance(plan, Fresh) and plan.rejected == ()


@pytest.mark.parametrize(
    ("held", "evidence"),
    [
        (listing(debris=["snapshots/trash_000003"]), "snapshots/trash_000003 was published once"),
        (listing(lives=[life(1), life(2, restored=3)]), "incarnation 2 restored cut 3"),
        (listing(ends=[end(1, 4)]), "incarnation 1 published cut 4"),
    ],
)
def test_a_run_whose_cuts_are_gone_is_never_started_over(held: Any, evidence: str) -> None:
    with pytest.raises(NotRestorable) as caught:
        Disk().plan(held)
    assert evidence in str(caught.value)
    assert "choose a new run directory" in str(caught.value)


@pytest.mark.parametrize(
    ("held", "name"),
    [
        (listing(lives=(), bootstrap=None), "run.json"),
        (listing(run=None, bootstrap=None), "incarnations/"),
        (listing(run=None, lives=()), "bootstrap/"),
        (listing(snapshot(1), run=None, lives=(), bootstrap=None), "snapshots/snapshot_000001"),
        (listing(run=None, lives=(), bootstrap=None, debris=["tmp_000001"]), "tmp_000001"),
        (listing(run=None, lives=(), bootstrap=None, strangers=["a.txt"]), "a.txt"),
        (
            listing(run=None, lives=(), bootstrap=None, strangers=list("abcdefg")),
            "holds a, b, c, d, e and 2 more; required: an empty directory",
        ),
    ],
)
def test_fresh_needs_an_empty_directory(held: Any, name: str) -> None:
    with pytest.raises(NotRestorable) as caught:
        Disk().plan(held, fresh=True)
    assert name in str(caught.value)
    assert "leave --fresh out to continue" in str(caught.value)


def test_a_directory_that_is_not_a_run_is_refused() -> None:
    with pytest.raises(ForeignRun, match=r"no run\.json, but holds thesis\.tex"):
        Disk().plan(listing(run=None, lives=(), bootstrap=None, strangers=["thesis.tex"]))
    with pytest.raises(ForeignRun, match=r"holds snapshots/snapshot_000001"):
        Disk().plan(listing(snapshot(1), run=None))


def test_strangers_beside_a_run_do_not_matter() -> None:
    assert resumed(Disk().plan(listing(snapshot(1), strangers=["notes.md"]))).manifest.sequence == 1


def test_another_format_is_refused_even_beside_a_cut_that_could_be_read() -> None:
    with pytest.raises(UnsupportedFormat, match=r"run\.json has format 2"):
        Disk().plan(listing(snapshot(1), run=RunRecord(format=2, run="run-a", created=0.0)))
    with pytest.raises(UnsupportedFormat, match="snapshot_000002 has format 7"):
        Disk().plan(listing(snapshot(1), edited(snapshot(2), format=7)))


def test_older_snapshots_are_not_called_ignored() -> None:
    held = listing(snapshot(1), step(1, 2), snapshot(3, 1), snapshot(4, 1))
    plan = resumed(Disk().plan(held, CHECKPOINT))
    assert [path.name for path in plan.ignored] == ["snapshot_000004", "snapshot_000003"]
