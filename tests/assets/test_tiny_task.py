"""The tiny task: golden values, determinism, a held-out split that training never touches."""

from __future__ import annotations

import hashlib

import pytest

from outlast.assets import tiny_task


def _prompts(count: int, seed: int, *, held_out: bool = False) -> list[str]:
    return [tiny_task.item(i, seed, held_out=held_out).prompt for i in range(count)]


def test_items_have_golden_values() -> None:
    # Run directories name prompts by (index, seed): changing these silently changes old runs.
    assert tiny_task.item(0, 0, held_out=False) == ("8+2+3+7=", "0")
    assert tiny_task.item(1, 0, held_out=False) == ("6+2+5+0=", "3")
    assert tiny_task.item(8999, 0, held_out=False) == ("6+8+1+4=", "9")
    assert tiny_task.item(0, 1, held_out=False) == ("6+9+7+9=", "1")
    assert tiny_task.item(0, 0, held_out=True) == ("3+6+8+5=", "2")
    assert tiny_task.item(1, 0, held_out=True) == ("1+9+3+7=", "0")


def test_the_order_of_every_index_is_pinned() -> None:
    lines = "".join(_prompts(9_000, 5) + _prompts(1_000, 5, held_out=True))
    assert hashlib.sha256(lines.encode()).hexdigest()[:16] == "2533f34ea1848c96"


def test_one_round_names_every_problem_once_and_the_next_repeats_it() -> None:
    for held_out in (False, True):
        size = tiny_task.size(held_out=held_out)
        round_ = _prompts(2 * size, 11, held_out=held_out)
        assert len(set(round_[:size])) == size
        assert round_[size:] == round_[:size]


def test_held_out_problems_are_never_training_problems() -> None:
    held_out = set(_prompts(1_000, 3, held_out=True))
    for seed in range(4):
        assert held_out.isdisjoint(_prompts(9_000, seed))
    assert held_out == set(_prompts(1_000, 8, held_out=True))


def test_seeds_give_different_orders() -> None:
    assert len({tuple(_prompts(8, seed)) for seed in range(20)}) == 20


def test_a_negative_index_is_refused() -> None:
    with pytest.raises(ValueError, match="observed -1"):
        tiny_task.item(-1, 0)


@pytest.mark.parametrize(
    ("response", "parsed"),
    [
        (">7", "7"),
        ("8;0;7>7", "7"),
        ("8;0;7>7\n", "7"),
        (">3>4", "4"),
        ("", None),
        ("7", None),
        (">", None),
        (">77", None),
        (">7;", None),
    ],
)
def test_only_the_digit_after_the_last_arrow_is_the_answer(
    response: str, parsed: str | None
) -> None:
    assert tiny_task.parse_answer(response) == parsed


def test_reward_is_one_for_the_right_digit_only() -> None:
    problem = tiny_task.item(0, 0)
    wrong = str((int(problem.answer) + 1) % 10)
    assert tiny_task.reward(f">{problem.answer}", problem.answer) == 1.0
    assert tiny_task.reward(tiny_task.thinking(problem.prompt), problem.answer) == 1.0
    assert tiny_task.reward(f">{wrong}", problem.answer) == 0.0
    assert tiny_task.reward(problem.answer, problem.answer) == 0.0


def test_thinking_writes_the_running_sums() -> None:
    assert tiny_task.thinking("3+5+2+7=") == "8;0;7>7"
