"""S4, S6, S7: each contradiction a cut can hold is named by its self-check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from outlast.errors import InvariantError
from outlast.model.cursor import CursorState, DatasetOrder
from outlast.model.cut import (
    Anchor,
    AnchorKind,
    Cut,
    LogPosition,
    SamplerState,
    SettledCounts,
    check_cut,
    check_group,
)
from outlast.model.groups import (
    DrawnPrompt,
    DropReason,
    Group,
    GroupState,
    PromptRef,
    StepRecord,
)
from outlast.model.ids import AttemptKey, GroupId, Incarnation, Sequence, Step, TrainerVersion
from outlast.testing.records import make_group

ORDER = DatasetOrder(seed=7, size=5)
replace = msgspec.structs.replace


def prompt(draw: int) -> PromptRef:
    epoch, index = ORDER.at(draw)
    return PromptRef(dataset="test", epoch=epoch, index=index)


def grouped(draw: int, **fields: Any) -> Group:
    return make_group(draw, prompt=prompt(draw), **fields)


def step_record(step: int, *groups: int) -> StepRecord:
    return StepRecord(
        step=Step(step),
        groups=tuple(map(GroupId, groups)),
        chunks=(len(groups),),
        rows=(),
        history=f"{step:064x}",
        outcome={},
    )


def make_cut() -> Cut:
    """Version 2, step 3 still to replay: 9 drawn = 7 live + 1 in reserve + 1 dropped."""
    groups = (
        grouped(0, state=GroupState.APPLIED, step=1),
        grouped(1, state=GroupState.APPLIED, step=2),
        grouped(3, state=GroupState.CLAIMED, step=4),
        grouped(4, state=GroupState.BUFFERED),
        grouped(5, state=GroupState.COMPLETE),
        grouped(6, state=GroupState.OPEN),
        grouped(7, state=GroupState.REPLAY, step=3),
    )
    return Cut(
        sequence=Sequence(1),
        incarnation=Incarnation(1),
        parent=None,
        anchor=Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history="0" * 64),
        trainer_version=TrainerVersion(2),
        history=f"{2:064x}",
        log=LogPosition(incarnation=Incarnation(1), length=0, digest=""),
        dataset_size=5,
        dataset_seed=7,
        cursor=CursorState(epoch=1, position=4, drawn=9, exhausted=False),
        groups=groups,
        reserve=(DrawnPrompt(id=GroupId(8), prompt=prompt(8)),),
        sampler=SamplerState(name="windowed", admitted=8, credited=1, batches=0, own={}),
        settled=SettledCounts(trained=0, dropped={DropReason.STALE: 1}),
        prefixes=(),
        applied_steps=(step_record(1, 0), step_record(2, 1), step_record(3, 7)),
        shortfalls={},
        owed={},
        skipped_prompts=0,
        consecutive_dropped=0,
        next_position=9,
        last_done={},
        tokens_per_s=0.0,
        metrics={},
    )


def test_a_consistent_cut_passes_and_survives_msgpack() -> None:
    cut = make_cut()
    check_cut(cut, ORDER)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(cut), type=Cut)
    assert again == cut
    assert cut.drawn == 9 and cut.settled.total == 1 and str(cut.anchor) == "bootstrap"
    assert cut.counts()[GroupState.APPLIED] == 2
    assert cut.row_keys == {
        AttemptKey(GroupId(g), s, Incarnation(1), 0)  # type: ignore[arg-type]
        for g in (0, 1, 3, 4, 5, 6, 7)
        for s in (0, 1)
        if (g, s) != (6, 1)
    }


def test_unknown_fields_are_refused() -> None:
    raw = msgspec.to_builtins(make_cut())
    raw["sampler"]["extra"] = 1
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `extra`.*sampler"):
        msgspec.convert(raw, type=Cut)


def swap(cut: Cut, place: int, group: Group) -> Cut:
    groups = list(cut.groups)
    groups[place] = group
    return replace(cut, groups=tuple(groups))


CONTRADICTIONS: list[tuple[str, Callable[[Cut], Cut]]] = [
    (
        "S4: a group id stands twice in the cut",
        lambda c: replace(c, reserve=(DrawnPrompt(id=GroupId(0), prompt=prompt(0)),)),
    ),
    (
        r"S4: 10 prompts drawn, but 7 live \+ 1 reserve \+ 1 settled = 9",
        lambda c: replace(c, cursor=replace(c.cursor, drawn=10)),
    ),
    (
        "S4: 9 prompts drawn, but 6 live",
        lambda c: replace(c, groups=c.groups[:4] + c.groups[5:]),
    ),
    (
        r"S4: group 4 holds prompt \(0, 9\), not",
        lambda c: swap(
            c, 3, replace(c.groups[3], prompt=PromptRef(dataset="test", epoch=0, index=9))
        ),
    ),
    (
        r"S4: group 8 holds prompt \(\d, \d\), not",
        lambda c: replace(c, reserve=(DrawnPrompt(id=GroupId(8), prompt=prompt(7)),)),
    ),
    (
        "S6: two groups share a buffer position",
        lambda c: swap(c, 3, replace(c.groups[3], position=3)),
    ),
    (
        "S6: group 4 is buffered with step 3",
        lambda c: swap(c, 3, replace(c.groups[3], step=Step(3))),
    ),
    (
        r"S1: applied groups .* differ from step records .*\[0\]\}",
        lambda c: replace(c, applied_steps=c.applied_steps[:1]),
    ),
    (
        "S7: the history of the last step is not the cut's",
        lambda c: replace(c, history="f" * 64),
    ),
    (
        r"S1: applied steps \[1, 2, 3\] do not lead from step_1 to version 2",
        lambda c: replace(
            c, anchor=Anchor(kind=AnchorKind.CHECKPOINT, version=TrainerVersion(1), history="")
        ),
    ),
    (
        "S1: applied groups .* differ from step records",
        lambda c: replace(c, trainer_version=TrainerVersion(3)),
    ),
]


@pytest.mark.parametrize(("message", "spoil"), CONTRADICTIONS)
def test_each_contradiction_of_a_cut_is_named(message: str, spoil: Callable[[Cut], Cut]) -> None:
    with pytest.raises(InvariantError, match=message):
        check_cut(spoil(make_cut()), ORDER)


def _foreign_receipt(group: Group) -> Group:
    first, second = group.siblings
    return replace(group, siblings=(replace(first, receipt=second.receipt), second))


GROUP_CONTRADICTIONS: list[tuple[str, Group]] = [
    ("is trained, yet unsettled", make_group(0, state=GroupState.TRAINED)),
    ("is dropped, yet unsettled", make_group(0, state=GroupState.DROPPED)),
    ("is claimed with step None", replace(make_group(0, state=GroupState.CLAIMED), step=None)),
    ("is replay with step None", replace(make_group(0, state=GroupState.REPLAY), step=None)),
    ("is open with step 1", replace(make_group(0, state=GroupState.OPEN), step=Step(1))),
    (
        "is complete with an unsealed sibling",
        replace(make_group(0, state=GroupState.OPEN), state=GroupState.COMPLETE),
    ),
    (
        "sibling 1 stands in slot 0",
        replace(make_group(0), siblings=make_group(0).siblings[::-1]),
    ),
    ("sibling 0 holds the receipt of another attempt", _foreign_receipt(make_group(0))),
    ("is buffered with () rewards", replace(make_group(0), trained_rewards=())),
    ("is buffered with 0 keep flags", replace(make_group(0), keep=())),
    (
        "is complete with 2 keep flags",
        replace(make_group(0, state=GroupState.COMPLETE), keep=(True, True)),
    ),
    (
        "is complete with (1.0, 2.0) rewards",
        replace(make_group(0, state=GroupState.COMPLETE), trained_rewards=(1.0, 2.0)),
    ),
    ("is buffered at position None", replace(make_group(0), position=None)),
    ("is open at position 4", replace(make_group(0, state=GroupState.OPEN), position=4)),
]


@pytest.mark.parametrize(("message", "group"), GROUP_CONTRADICTIONS)
def test_s6_each_contradiction_within_a_record_is_named(message: str, group: Group) -> None:
    with pytest.raises(InvariantError) as caught:
        check_group(group)
    assert message in str(caught.value) and str(caught.value).startswith("S6: group 0 is ")


@pytest.mark.parametrize(
    "state", [s for s in GroupState if s not in (GroupState.TRAINED, GroupState.DROPPED)]
)
def test_every_unsettled_state_has_a_consistent_record(state: GroupState) -> None:
    check_group(make_group(3, state=state))
