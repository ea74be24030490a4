"""How the benchmark computes its figures: functions over tapes made by hand, and one real run."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from outlast.telemetry import events
from outlast.testing.bench_goodput import Account, Goodput, forget, generated, schedule, set_ups
from outlast.testing.bench_many import Watch, bounds, disk_use, growth
from outlast.testing.bench_picture import Line, picture, short
from outlast.testing.bench_runs import Pace, pace, step_tokens
from outlast.testing.bench_tables import PARTS, table_rows
from outlast.testing.bench_throughput import Lap, compared, turned
from outlast.testing.bench_transfer_queue import Side, figures_of, longest_wait
from outlast.testing.chaos_child import Taped
from tests.e2e.program import outlast, sets
from tests.telemetry.samples import gauges


def committed(group: int, tokens: int) -> events.GroupCommitted:
    return events.GroupCommitted(group=group, reward_mean=0.0, tokens=tokens)


def step(number: int, *groups: int) -> events.StepFinished:
    return events.StepFinished(
        step=number, groups=groups, chunks=(1,), metrics={}, lags=(0,), wait_s=0.0, train_s=0.1
    )


def published(size: int) -> events.SnapshotPublished:
    return events.SnapshotPublished(
        id="snapshot_000001", sequence=1, trainer_version=1, bytes_written=size, bytes_total=size,
        groups=1, rows=1, hold_s=0.001, save_s=0.1, commit_s=0.1, final=False,
    )  # fmt: skip


def restored(version: int) -> events.Restored:
    return events.Restored(
        anchor="step", snapshot=None, sequence=1, age_s=1.0, trainer_version=version,
        steps_to_replay=0, groups_reused=0, siblings_reused=0, tokens_reused=0,
        prefix_tokens_reused=0, attempts_superseded=0, siblings_redispatched=0, rejected=(),
        load_s=0.1, estimated_saved_s=0.0,
    )  # fmt: skip


def dispatched() -> events.AttemptDispatched:
    return events.AttemptDispatched(key="g1.s0.i1.n0", version=0, prefix_tokens=0)


def tape(*said: tuple[float, events.AnyEvent]) -> list[Taped]:
    return [Taped(wall, event) for wall, event in said]


RUN = tape(
    (1.0, committed(1, 10)),
    (2.0, step(1, 1)),
    (2.5, published(100)),
    (3.0, committed(2, 30)),
    (6.0, step(2, 2)),
    (6.5, published(50)),
)


def test_pace_starts_after_the_warm_up() -> None:
    assert pace(RUN, first=1, last=2) == Pace(steps=1, tokens=30, seconds=4.0, snapshots=1)
    with pytest.raises(ValueError, match="steps 1 and 3"):
        pace(RUN, first=1, last=3)


def test_a_group_committed_in_an_earlier_life_counts_in_its_step() -> None:
    known = {7: 70}
    assert step_tokens(iter([committed(8, 80), step(4, 7, 8)]), known) == {4: 150}
    assert known == {7: 70, 8: 80}


def test_every_set_up_takes_every_place_in_the_order() -> None:
    orders = [turned(("a", "b", "c"), number) for number in range(3)]
    assert {order[0] for order in orders} == {order[2] for order in orders} == {"a", "b", "c"}


def test_ratios_are_taken_within_a_round() -> None:
    def lap(tokens: int) -> Lap:
        return Lap(pace=Pace(steps=1, tokens=tokens, seconds=1.0, snapshots=0), cpu_s=2.0)

    found = compared({"null": [lap(100), lap(50)], "1": [lap(90), lap(50)]})
    assert (found["1"]["ratio_min"], found["1"]["ratio_max"]) == (0.9, 1.0)
    assert found["1"]["ratio"] == pytest.approx(0.95) and found["null"]["ratio"] == 1.0


def test_growth_compares_quarters() -> None:
    sizes = (100, 100, 300, 300, 300, 300, 200, 200, 999)
    found = growth(tape(*((float(n), published(size)) for n, size in enumerate(sizes))), 8)
    assert (found["snapshots"], found["bytes_first_quarter"], found["bytes_growth"]) == (8, 100, 2)


def test_a_linked_file_uses_disk_once(tmp_path: Path) -> None:
    segment = tmp_path / "segments" / "seg_1.arrow"
    segment.parent.mkdir()
    segment.write_bytes(bytes(100))
    link = tmp_path / "snapshots" / "snapshot_000001" / "seg_1.arrow"
    link.parent.mkdir(parents=True)
    link.hardlink_to(segment)
    (tmp_path / "telemetry.jsonl").write_bytes(bytes(7))
    assert disk_use(tmp_path) == (100, 7)
    watch = Watch(tmp_path)
    watch.look()
    watch.look()
    assert bounds(watch)["state_growth"] == 1.0 and watch.live == [1, 1]


def test_a_schedule_is_the_same_for_everyone_and_near_its_mean() -> None:
    plan = Goodput(kills=50, mean_life_s=10.0)
    assert schedule(plan) == schedule(plan) != schedule(Goodput(kills=50, seed=1))
    assert all(5.0 <= at <= 15.0 for at in schedule(plan))
    assert [s.name for s in set_ups(1.0) if s.forgets] == ["none"]


def test_generated_tokens_are_those_of_the_last_gauge() -> None:
    early, late = (msgspec.structs.replace(gauges(), generated_tokens=n) for n in (100, 500))
    assert generated(tape((10.0, early), (10.1, late), (10.2, step(1, 1)))) == 500
    assert generated([]) == 0


def test_an_account_goes_back_with_the_run() -> None:
    account = Account()
    first = tape((101.0, dispatched()), (102.0, committed(1, 10)), (103.0, step(1, 1)),
                 (104.0, committed(2, 10)), (105.0, step(2, 2)))  # fmt: skip
    account.take(first, spawned=100.0, ended=106.0, killed=True)
    assert (account.trained, account.wall_s, account.restart_s) == (20, 6.0, 1.0)
    second = tape((202.0, restored(1)), (203.0, dispatched()), (204.0, step(2, 2)))
    account.take(second, spawned=200.0, ended=204.0, killed=False)
    assert account.curve == [(0.0, 0), (3.0, 10), (5.0, 20), (6.0, 10), (10.0, 20)]
    assert (account.trained, account.kills, account.lives, account.restart_s) == (20, 1, 2, 4.0)
    assert account.document()["goodput_tokens_per_s"] == 2.0


def test_the_longest_wait_overlaps_the_save() -> None:
    waits = [(0.0, 9.0), (10.0, 1.0), (12.0, 3.0), (16.0, 8.0)]
    assert longest_wait(waits, began=10.5, ended=13.0) == 3.0
    assert longest_wait([], began=0.0, ended=1.0) == 0.0


def test_a_duel_compares_medians() -> None:
    ours = Side(save_s=[1.0, 1.0], stall_s=[0.5, 0.5], hold_s=[0.01, 0.01], size=[10, 10])
    theirs = Side(save_s=[4.0, 4.0], stall_s=[2.0, 2.0], size=[100, 100])
    found = figures_of(ours, theirs)
    ratios = [found[f"{name}_ratio"] for name in ("hold", "stall", "total", "bytes")]
    assert ratios == [0.005, 0.25, 0.25, 0.1]
    (hold, *_) = table_rows({"transfer_queue": {"4096": found}})
    assert hold[2:] == ("<= 1/50", True) and "1/200" in hold[1]


def test_every_part_has_rows_and_a_missing_one_says_so() -> None:
    (row,) = table_rows({"machine": "two cores", "transfer_queue": {"not_measured": "no ray"}})
    assert row[1] == "NOT MEASURED: no ray"
    assert list(PARTS)[-3:] == ["throughput", "many", "goodput"]


def test_the_picture_is_well_formed_and_names_everyone() -> None:
    lines = [
        Line(name="none", curve=[(0, 0), (9, 900)], deaths=[(5, 0)], goodput=100, regenerated=80),
        Line(name="token", curve=[(0, 0), (5, 900)], deaths=[], goodput=180, regenerated=0),
    ]
    drawn = picture(lines, title="a < b & c")
    texts = {element.text for element in ElementTree.fromstring(drawn).iter() if element.text}
    assert {"a < b & c", "no rollout state", "token", "180"} <= texts
    with pytest.raises(ValueError, match="nothing to draw"):
        picture([], title="")


def test_numbers_are_short() -> None:
    assert [short(n) for n in (0, 12, 1_234, 2_500_000)] == ["0", "12", "1.23 k", "2.5 M"]


def test_a_run_that_forgets_its_rollouts_keeps_its_weights(tmp_path: Path) -> None:
    """It goes on from the newest trainer checkpoint: from the beginning it would look worse."""
    options = sets(
        "algorithm.max_num_steps=2", "rollout_checkpointing.snapshot_attempt_interval_s=null"
    )
    assert outlast("train", *options, "--run-dir", tmp_path / "run").returncode == 0
    found = forget(tmp_path / "run", tmp_path / "next")
    report = msgspec.json.decode(outlast("audit", found, "--json").stdout)
    assert report["ok"] and report["trainer_version"] == 2
