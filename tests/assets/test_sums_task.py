"""The sums of the SmolLM2 recipe: golden values, disjoint splits, the last number counts."""

from __future__ import annotations

import pytest

from outlast.assets import sums_task


def _prompts(seed: int, *, digits: int, held_out: bool) -> list[str]:
    size = sums_task.size(digits=digits, held_out=held_out)
    return [sums_task.item(i, seed, digits=digits, held_out=held_out).prompt for i in range(size)]


def test_items_have_golden_values() -> None:
    # Run directories name prompts by (index, seed): changing these silently changes old runs.
    golden = {
        (0, 0, 1, False): ("0 + 9 =", "9"),
        (79, 0, 1, False): ("0 + 4 =", "4"),
        (0, 0, 1, True): ("9 + 7 =", "16"),
        (0, 0, 2, False): ("76 + 67 =", "143"),
        (5, 3, 2, True): ("11 + 68 =", "79"),
    }
    for (index, seed, digits, held_out), (problem, answer) in golden.items():
        wording = f"State the final answer to the following arithmetic problem: {problem}"
        observed = sums_task.item(index, seed, digits=digits, held_out=held_out)
        assert observed == (wording, answer)


@pytest.mark.parametrize(("digits", "train", "held"), [(1, 80, 20), (2, 6_480, 1_620)])
def test_splits_are_whole_and_disjoint_under_every_seed(digits: int, train: int, held: int) -> None:
    held_out = set(_prompts(9, digits=digits, held_out=True))
    assert len(held_out) == held
    for seed in range(3):
        trained = _prompts(seed, digits=digits, held_out=False)
        assert len(trained) == len(set(trained)) == train
        assert held_out.isdisjoint(trained)


def test_the_next_round_repeats_the_first_and_seeds_reorder() -> None:
    assert sums_task.item(80, 4) == sums_task.item(0, 4)
    assert _prompts(1, digits=1, held_out=False) != _prompts(2, digits=1, held_out=False)


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="observed -1"):
        sums_task.item(-1, 0)
    with pytest.raises(ValueError, match="observed 3"):
        sums_task.item(0, 0, digits=3)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        (" 15.", 1.0),
        ("The answer is 15.", 1.0),
        ("6 + 9 = 15", 1.0),
        ("15.0", 1.0),
        ("15 or 14", 0.0),
        ("-15", 0.0),
        ("fifteen", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_number_is_the_answer(response: str, reward: float) -> None:
    assert sums_task.reward(response, "15") == reward


def test_commas_are_no_part_of_a_number() -> None:
    assert sums_task.parse_answer("about 1,015") == "1015"
    assert sums_task.parse_answer("none") is None
