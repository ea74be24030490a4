"""Every combination of what may stand on disk x mode, with its exact outcome (DESIGN 12).

The scene: a trainer checkpoint step_2 (bundled cut 4), a snapshot 5 anchored to it where it exists
and to bootstrap else. `lineage`: the snapshot is of an incarnation that its successor left behind;
`other`: it was copied in from another run.
"""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from outlast.durable.manifest import FoundCut, IncarnationRecord, RunListing
from outlast.durable.restore import Fresh, RestoreMode, Resume
from outlast.errors import NotRestorable
from tests.durable.scenes import BOOTSTRAP, Disk, life, listing, snapshot, step

CHECKPOINTS = ("none", "valid", "corrupt")
SNAPSHOTS = ("none", "valid", "corrupt", "lineage", "other")
BOOTSTRAPS = (True, False)

SNAP, STEP, FRESH = "snapshots/snapshot_000005", "step_000002", "fresh"
UNUSABLE = "and no cut of this run can be used. Nothing was changed"
USE_LATEST = "Use rollout_checkpointing.restore_mode: latest, or choose a new directory"
NO_BOOTSTRAP = f"{SNAP}: incompatible: its anchor bootstrap/anchor.json is missing"
BAD_ANCHOR = f"{SNAP}: incompatible: its anchor step_2 is corrupt: rows differ"
BAD_STEP = f"{STEP}: corrupt: rows differ"
BAD_SNAP = f"{SNAP}: corrupt: bytes differ"
LEFT = f"{SNAP}: foreign: cut 5 of incarnation 1, whose successor went on from cut 4"
OTHER = f"{SNAP}: foreign: of another run (run-b; this one is run-a)"

# (checkpoint, snapshot, bootstrap?) -> (latest, trainer_checkpoint). An outcome is a path to resume
# from, `fresh`, or the fragments that a refusal must contain.
Outcome = str | tuple[str, ...]
TABLE: dict[tuple[str, str, bool], tuple[Outcome, Outcome]] = {
    ("none", "none", True): (FRESH, FRESH),
    ("none", "none", False): (FRESH, FRESH),
    ("none", "valid", True): (SNAP, (USE_LATEST,)),
    ("none", "valid", False): ((UNUSABLE, NO_BOOTSTRAP), (USE_LATEST,)),
    ("none", "corrupt", True): ((UNUSABLE, BAD_SNAP), (UNUSABLE, BAD_SNAP)),
    ("none", "corrupt", False): ((UNUSABLE, BAD_SNAP), (UNUSABLE, BAD_SNAP)),
    ("none", "lineage", True): ((UNUSABLE, LEFT), (UNUSABLE, LEFT)),
    ("none", "lineage", False): ((UNUSABLE, LEFT), (UNUSABLE, LEFT)),
    ("none", "other", True): (FRESH, FRESH),
    ("none", "other", False): (FRESH, FRESH),
    ("valid", "none", True): (STEP, STEP),
    ("valid", "none", False): (STEP, STEP),
    ("valid", "valid", True): (SNAP, STEP),
    ("valid", "valid", False): (SNAP, STEP),
    ("valid", "corrupt", True): (STEP, STEP),
    ("valid", "corrupt", False): (STEP, STEP),
    ("valid", "lineage", True): (STEP, STEP),
    ("valid", "lineage", False): (STEP, STEP),
    ("valid", "other", True): (STEP, STEP),
    ("valid", "other", False): (STEP, STEP),
    ("corrupt", "none", True): ((UNUSABLE, BAD_STEP), (UNUSABLE, BAD_STEP)),
    ("corrupt", "none", False): ((UNUSABLE, BAD_STEP), (UNUSABLE, BAD_STEP)),
    ("corrupt", "valid", True): ((UNUSABLE, BAD_ANCHOR, BAD_STEP), (USE_LATEST, BAD_STEP)),
    ("corrupt", "valid", False): ((UNUSABLE, BAD_ANCHOR, BAD_STEP), (USE_LATEST, BAD_STEP)),
    ("corrupt", "corrupt", True): ((UNUSABLE, BAD_SNAP, BAD_STEP),) * 2,
    ("corrupt", "corrupt", False): ((UNUSABLE, BAD_SNAP, BAD_STEP),) * 2,
    ("corrupt", "lineage", True): ((UNUSABLE, LEFT, BAD_STEP),) * 2,
    ("corrupt", "lineage", False): ((UNUSABLE, LEFT, BAD_STEP),) * 2,
    ("corrupt", "other", True): ((UNUSABLE, OTHER, BAD_STEP),) * 2,
    ("corrupt", "other", False): ((UNUSABLE, OTHER, BAD_STEP),) * 2,
}


def scene(checkpoint: str, snap: str, bootstrap: bool) -> tuple[RunListing, Disk]:
    cuts: list[FoundCut] = []
    disk = Disk()
    if checkpoint != "none":
        cuts.append(step(2, 4))
        if checkpoint == "corrupt":
            disk.rotten[STEP] = "rows differ"
    if snap != "none":
        found = snapshot(
            5, 0 if checkpoint == "none" else 2, run="run-b" if snap == "other" else "run-a"
        )
        broken = dataclasses.replace(found, manifest=None, defect="bytes differ")
        cuts.append(broken if snap == "corrupt" else found)
    lives: list[IncarnationRecord] = [life(1)]
    if snap == "lineage":
        lives.append(life(2, first=6, restored=4))
    held = listing(*cuts, lives=lives, bootstrap=BOOTSTRAP if bootstrap else None)
    return held, disk


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(itertools.product(CHECKPOINTS, SNAPSHOTS, BOOTSTRAPS))


@pytest.mark.parametrize("mode", list(RestoreMode))
@pytest.mark.parametrize(("checkpoint", "snap", "bootstrap"), list(TABLE))
def test_outcome(checkpoint: str, snap: str, bootstrap: bool, mode: RestoreMode) -> None:
    held, disk = scene(checkpoint, snap, bootstrap)
    expected = TABLE[checkpoint, snap, bootstrap][mode is RestoreMode.TRAINER_CHECKPOINT]
    if isinstance(expected, tuple):
        with pytest.raises(NotRestorable) as caught:
            disk.plan(held, mode)
        for fragment in expected:
            assert fragment in str(caught.value)
        return
    plan = disk.plan(held, mode)
    noted = {str(item).split(": ")[1] for item in plan.rejected}
    assert (
        noted
        == {
            "none": set[str](),
            "valid": set[str](),
            "corrupt": {"corrupt"},
            "lineage": {"foreign"},
            "other": {"foreign"},
        }[snap]
    )
    if expected == FRESH:
        assert isinstance(plan, Fresh)
        assert "never published a cut" in plan.reason
        return
    assert isinstance(plan, Resume)
    assert str(plan.cut.path) == expected
    assert plan.steps_to_replay == 0
    assert str(plan.anchor) == ("bootstrap" if checkpoint == "none" else "step_2")
    assert (plan.anchor_tree is None) == (checkpoint == "none")
    aside = mode is RestoreMode.TRAINER_CHECKPOINT and snap == "valid"
    assert [str(path) for path in plan.ignored] == ([SNAP] if aside else [])
