"""Retention, sweeps and anchors in use, on real run directories."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec
import pytest

from outlast.durable.anchors import removable_checkpoints, write_bootstrap
from outlast.durable.lineage import cut_state, lineage_cuts
from outlast.durable.listing import read_run
from outlast.durable.manifest import (
    BootstrapRecord,
    CutState,
    FoundCut,
    TreeKind,
)
from outlast.durable.sealed import seal
from outlast.errors import DiskError, ForeignRun, InvariantError
from outlast.model.ids import Sequence, TrainerVersion
from outlast.testing.crash_disk import Fault, FaultKind
from outlast.testing.crash_facts import RUN_DIR, Promises
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import long_script
from tests.durable.written import SNAPSHOT, found, lived, overwrite, two_snapshots


def test_s12_retention_follows_the_acknowledgement_and_spares_the_newest() -> None:
    disk, life = lived(long_script)
    assert disk.list(RUN_DIR / "snapshots") == ("snapshot_000008",)
    assert [n for n in disk.list(RUN_DIR) if n.startswith("step_")] == [
        "step_000002",
        "step_000003",
    ]
    with pytest.raises(InvariantError, match="newest"):
        life.publisher.retain_snapshots(keep_latest_k=0)


def test_retention_prunes_what_earlier_lives_published() -> None:
    """Known failure 67: after a resume the old ones are still pruned."""
    disk, _ = lived(two_snapshots)
    for pid in (2, 3):
        disk = disk.kill()
        life = Life(disk, Promises(), pid=pid)
        life.start()
        life.draw(1)
        life.snapshot()
        assert len(disk.list(RUN_DIR / "snapshots")) == 2


def test_foreign_cuts_are_kept() -> None:
    disk, _ = lived(two_snapshots)
    disk.rot(SNAPSHOT / "state.json.zst", at=3)
    disk = disk.kill()
    life = Life(disk, Promises(), pid=2)
    life.start()
    disk.rot(SNAPSHOT / "state.json.zst", at=3)  # whole again, but the run went on from cut 1
    life.keep = 1
    life.draw(1)
    life.snapshot()
    listing = read_run(disk, RUN_DIR, verify="manifest")
    states = {str(cut.path): cut_state(listing, cut) for cut in listing.cuts}
    assert states == {
        "snapshots/snapshot_000002": CutState.FOREIGN,
        "snapshots/snapshot_000003": CutState.VALID,
    }
    assert [cut.number for cut in lineage_cuts(listing)] == [3]


def test_a_failed_deletion_is_a_warning_and_is_done_later() -> None:
    """Known failure 53: an undeletable old directory must not stop training."""
    seen: set[str] = set()
    for at in range(60):
        disk, life = lived(two_snapshots)
        disk.fault = Fault(disk.calls + at, FaultKind.EIO)
        try:
            warnings = life.publisher.retain_snapshots(keep_latest_k=1)
        except DiskError:
            continue  # the listing itself could not be read; the caller reports it
        finally:
            disk.fault = None
        seen.update(warning.split(" ")[0] for warning in warnings)
        assert life.publisher.retain_snapshots(keep_latest_k=1) == ()
        assert disk.list(RUN_DIR / "snapshots") == ("snapshot_000002",)
    assert seen == {"retention", "removing"}


def test_a4_a_sweep_removes_trees_and_files_and_can_be_repeated() -> None:
    disk, life = lived()
    disk.create(RUN_DIR / "incarnations" / "tmp_0_000002.json").close()
    disk.mkdir(RUN_DIR / "snapshots" / "tmp_000009")
    disk.create(RUN_DIR / "snapshots" / "tmp_000009" / "state.json.zst").close()
    assert life.publisher.sweep() == ()
    listing = read_run(disk, RUN_DIR, verify="payload")
    assert listing.debris == () and all(cut.defect is None for cut in listing.cuts)
    swept = disk.visible().signature()
    assert life.publisher.sweep() == ()
    assert disk.visible().signature() == swept


def test_a_cut_that_names_the_log_of_an_earlier_life_syncs_none() -> None:
    """The first cut of a life may come before its first record."""
    disk, _ = lived()
    disk = disk.kill()
    life = Life(disk, Promises(), pid=2)
    life.start()
    assert life.loaded is not None
    old = life.loaded.cut.log
    cut = msgspec.structs.replace(life.loaded.cut, sequence=Sequence(9), log=old)
    tree = life.publisher.open_snapshot(Sequence(9))
    disk.mkdir(life.publisher.rows_directory(tree))
    rows = life.store.save(life.state.held, life.publisher.rows_directory(tree), link=True)
    prefixes = life.state.prefixes.values()
    life.publisher.publish_snapshot(
        tree, cut=cut, rows=rows, prefixes=prefixes, fingerprint=b"{}", recipe=b""
    )
    assert disk.list(RUN_DIR / "consumption") == ("inc_000001.log",)


def checkpoint(version: int) -> FoundCut:
    disk, _ = lived()
    step = found(disk, "step_000001")
    assert step.manifest is not None
    manifest = msgspec.structs.replace(
        step.manifest, trainer_version=TrainerVersion(version), metrics={"reward": version % 4}
    )
    return FoundCut(
        path=PurePosixPath(f"step_{version:06d}"),
        kind=step.kind,
        number=version,
        manifest=manifest,
        defect=None,
        bytes=1,
    )


def removed(
    *, top: int = 0, pinned: tuple[int, ...] = (), snapshots: tuple[FoundCut, ...] = ()
) -> list[int]:
    victims = removable_checkpoints(
        [checkpoint(n) for n in (1, 2, 3, 4, 5, 6)],
        snapshots=snapshots,
        pinned=[TrainerVersion(n) for n in pinned],
        keep_top_k=top,
        score=lambda m: None if m.trainer_version == 2 else m.metrics["reward"],
    )
    return [victim.number for victim in victims]


def test_an_anchor_in_use_is_never_deleted_and_keep_top_k_only_adds() -> None:
    assert removed() == [1, 2, 3, 4]
    assert removed(pinned=(2,)) == [1, 3, 4]
    assert removed(top=1) == [1, 4], "3 is the best, 2 still awaits its score"
    anchored = checkpoint(1)
    assert anchored.manifest is not None
    anchor = msgspec.structs.replace(anchored.manifest.anchor, version=TrainerVersion(3))
    held = FoundCut(
        path=PurePosixPath("snapshots/snapshot_000009"),
        kind=TreeKind.SNAPSHOT,
        number=9,
        manifest=msgspec.structs.replace(anchored.manifest, anchor=anchor),
        defect=None,
        bytes=1,
    )
    assert removed(snapshots=(held,)) == [1, 2, 4]


def test_the_bootstrap_anchor_is_written_once_and_never_changed() -> None:
    disk, _ = lived()
    record = BootstrapRecord(format=1, model="other", tokenizer="t", fingerprint="f")
    with pytest.raises(ForeignRun, match="another initial model"):
        write_bootstrap(disk, RUN_DIR, record=record)
    overwrite(disk, RUN_DIR / "bootstrap/anchor.json", seal(record))
    write_bootstrap(disk, RUN_DIR, record=record)
