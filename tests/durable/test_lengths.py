"""Length bias: found where long responses are left out, and not found where chance did it."""

from __future__ import annotations

import random

import pytest

from outlast.durable.lengths import LengthBooks, LengthSummary
from outlast.model.groups import DropReason, PromptRef
from outlast.model.ids import GroupId, Step
from outlast.model.journal import Applied, Dropped

REF = PromptRef(dataset="d", epoch=0, index=0)


def trained(number: int, lengths: list[int], masked: list[int] | None = None) -> Applied:
    return Applied(
        step=Step(number),
        groups=(GroupId(number),),
        refs=(REF,),
        history="",
        lengths=(tuple(lengths),),
        masked=(tuple(masked or ()),),
    )


def dropped(number: int, lengths: list[int], *, unfinished: int = 0) -> Dropped:
    return Dropped(
        group=GroupId(number),
        ref=REF,
        reason=DropReason.STALE,
        lengths=tuple(lengths),
        unfinished=unfinished,
    )


def draws(seed: int, groups: int = 200) -> list[list[int]]:
    """Lengths that depend on the prompt more than on the sample."""
    rng = random.Random(seed)
    return [
        [max(1, int(rng.gauss(mean, 10))) for _ in range(8)]
        for mean in (rng.uniform(20, 400) for _ in range(groups))
    ]


@pytest.mark.parametrize("seed", range(20))
def test_groups_dropped_by_chance_show_no_bias(seed: int) -> None:
    books, rng = LengthBooks(), random.Random(seed)
    for number, lengths in enumerate(draws(seed)):
        if rng.random() < 0.2:
            books.dropped(dropped(number, lengths))
        else:
            books.applied(trained(number, lengths))
    assert not books.close().biased


@pytest.mark.parametrize("seed", range(20))
def test_groups_dropped_for_their_length_show_it(seed: int) -> None:
    books, rng = LengthBooks(), random.Random(seed)
    for number, lengths in enumerate(draws(seed)):
        if rng.random() < 0.8 * (max(lengths) / 420) ** 2:
            books.dropped(dropped(number, lengths))
        else:
            books.applied(trained(number, lengths))
    found = books.close()
    assert found.biased and found.z is not None and found.z < 0
    assert found.ratio is not None and found.ratio < 1


def test_masking_the_longest_siblings_is_a_bias_too() -> None:
    books = LengthBooks()
    for number, lengths in enumerate(draws(1, groups=50)):
        *kept, longest = sorted(lengths)
        books.applied(trained(number, kept, [longest]))
    found = books.close()
    assert found.biased and found.masked.responses == 50


def test_nothing_left_out_is_no_question() -> None:
    books = LengthBooks()
    for number, lengths in enumerate(draws(2, groups=30)):
        books.applied(trained(number, lengths))
    found = books.close()
    assert (found.ratio, found.z, found.biased) == (1.0, None, False)


def test_few_groups_prove_nothing() -> None:
    books = LengthBooks()
    books.applied(trained(1, [5, 6]))
    books.dropped(dropped(2, [500], unfinished=1))
    found = books.close()
    assert found.z is None and found.unfinished == 1 and found.ratio is not None


def test_summary() -> None:
    found = LengthSummary.of([4, 1, 3, 2, 10])
    assert (found.responses, found.mean, found.p50, found.p90, found.longest) == (5, 4, 3, 10, 10)
    assert LengthSummary.of([]).responses == 0
