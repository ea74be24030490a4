"""The real program keeps its best checkpoints by validation, and no metric that nobody asks for."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from outlast.durable.cuts import peek_cut
from outlast.durable.files import PosixFiles
from outlast.durable.lineage import lineage_cuts
from outlast.durable.listing import read_run
from outlast.durable.names import parse_checkpoint
from tests.e2e.program import outlast, sets


@pytest.mark.slow
def test_a_cut_carries_the_metrics_of_standing_checkpoints_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = sets(
        "validation.enabled=true",
        "validation.val_period=1",
        "validation.size=4",
        "algorithm.max_num_steps=7",
        "checkpointing.metric_name=val:reward",
        "checkpointing.keep_top_k=1",
    )
    ended = outlast("train", "--run-dir", run, *options)
    assert ended.returncode == 0, ended.stderr
    standing = {v for v in map(parse_checkpoint, (p.name for p in run.iterdir())) if v is not None}
    assert 2 <= len(standing) <= 4
    files, place = PosixFiles(), PurePosixPath(run)
    newest = lineage_cuts(read_run(files, place, verify="manifest"))[-1]
    assert set(peek_cut(files, place, found=newest).metrics) <= {"0", *map(str, standing)}
