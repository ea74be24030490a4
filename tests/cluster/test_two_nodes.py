"""A node of a standing cluster is lost: while responses are generated, and during a snapshot."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

from outlast.telemetry import events
from outlast.testing.chaos_child import Child
from outlast.testing.processes import descendants
from tests.e2e.program import outlast, sets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 150.0
"""Ray notices the death of a node after a dozen seconds; then engines start again elsewhere."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head node; tests add the second one."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False}
    )
    yield cluster
    cluster.shutdown()


def life(directory: Path, address: str, *, failpoint: str = "") -> Child:
    options = sets(
        f"ray.address={address}",
        "generation.placement=ray",
        "generation.num_engines=2",
        "generation.health_interval_s=1",
        "algorithm.max_num_steps=100000",
    )
    return Child(
        [*options, "--run-dir", str(directory / "run")],
        tape=directory / "tape",
        log=directory / "log",
        environment={"OMP_NUM_THREADS": "1", "OUTLAST_FAILPOINT": failpoint},
    )


def progress(child: Child, *, steps: int = 1) -> None:
    """Wait for as many finished steps, and a sealed response after the last of them."""
    until, done, sealed = time.monotonic() + PATIENCE_S, 0, False
    while done < steps or not sealed:
        assert child.returncode is None and time.monotonic() < until, child.last_words()
        for taped in child.read():
            done += isinstance(taped.event, events.StepFinished)
            sealed = isinstance(taped.event, events.SiblingSealed) or (
                sealed and not isinstance(taped.event, events.StepFinished)
            )
        time.sleep(0.05)


def lose(cluster: Any, node: Any) -> None:
    """All processes of the node die at once, engines on it included."""
    raylet = node.all_processes["raylet"][0].process.pid
    engines = [p for p in descendants(raylet) if p.command.startswith("ray::")]
    assert engines, "no engine lives on the node that is to be lost"
    cluster.remove_node(node, allow_graceful=False)


def ends_well(child: Child, directory: Path) -> None:
    child.signal(signal.SIGTERM)
    assert child.wait(60) and child.returncode == 75, child.last_words()
    judged = outlast("audit", directory / "run")
    assert judged.returncode == 0, judged.stdout


def test_a_node_lost_during_generation_costs_no_run(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=4)
    with life(tmp_path, cluster.address) as child:
        progress(child, steps=2)
        lose(cluster, node)
        progress(child, steps=3)
        ends_well(child, tmp_path)


def test_a_node_lost_during_a_snapshot_costs_no_run(cluster: Any, tmp_path: Path) -> None:
    node = cluster.add_node(num_cpus=4)
    with life(tmp_path, cluster.address, failpoint="snapshot.rows_saved:stop:2") as child:
        until = time.monotonic() + PATIENCE_S
        while not child.stopped:
            assert child.returncode is None and time.monotonic() < until, child.last_words()
            time.sleep(0.05)
        child.read()
        lose(cluster, node)
        child.signal(signal.SIGCONT)
        progress(child, steps=2)
        published = [t for t in child.events if isinstance(t.event, events.SnapshotPublished)]
        assert len(published) >= 2
        ends_well(child, tmp_path)
