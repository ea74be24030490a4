"""Prompt sources: the contract on each, disjoint splits, and every mistake refused by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import ipc, parquet

from outlast.adapters.prompts import build_prompts
from outlast.adapters.prompts.procedural import HELD_OUT_OFFSET
from outlast.config.schema import DatasetSection
from outlast.errors import DataFailure, RecipeError, RefusedState
from outlast.ports import PromptItem
from tests.contracts.prompts_contract import check_prompts

ROWS: list[dict[str, Any]] = [
    {"prompt": f"Question {i}?", "answer": str(i), "level": i % 3} for i in range(7)
]
CHATS = [
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Question {i}?"},
        ],
        "answer": i,
    }
    for i in range(3)
]


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(json.dumps(row) for row in rows))  # blank lines are no rows
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_arrow(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    with ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def jsonl(tmp: Path) -> DatasetSection:
    return DatasetSection(source="jsonl", path=str(write_jsonl(tmp / "rows.txt", ROWS)))


def parquet_file(tmp: Path) -> DatasetSection:
    return DatasetSection(source="parquet", path=str(write_parquet(tmp / "rows.parquet", ROWS)))


def clone(tmp: Path) -> DatasetSection:
    for part in (0, 1):
        write_parquet(tmp / f"data/train-{part:05d}-of-00002.parquet", ROWS[part * 4 :][:4])
    write_jsonl(tmp / "validation.jsonl", ROWS[:2])
    return DatasetSection(source="hf", name=str(tmp), held_out="validation")


def saved_to_disk(tmp: Path) -> DatasetSection:
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        write_arrow(tmp / split / "data-00000-of-00001.arrow", rows)
        state = {"_split": split, "_indices_data_files": None}
        (tmp / split / "state.json").write_text(json.dumps(state))
    (tmp / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return DatasetSection(source="hf", name=str(tmp), held_out="test")


def tiny(tmp: Path) -> DatasetSection:
    return DatasetSection(source="tiny", size=7)


def gym(tmp: Path) -> DatasetSection:
    return DatasetSection(source="reasoning_gym", name="chain_sum", size=7, args={"max_terms": 3})


FILES = [jsonl, parquet_file, clone, saved_to_disk]
ALL = [*FILES, tiny, gym]
Maker = Callable[[Path], DatasetSection]


@pytest.mark.parametrize("make", ALL)
def test_contract(make: Maker, tmp_path: Path) -> None:
    section = make(tmp_path)
    check_prompts(lambda: build_prompts(section))
    assert len(build_prompts(section)) == 7
    assert len(build_prompts(section, size=3)) == 3


@pytest.mark.parametrize("make", FILES)
def test_files_of_every_kind_give_the_same_items(make: Maker, tmp_path: Path) -> None:
    source = build_prompts(make(tmp_path))
    assert [source.item(i) for i in range(7)] == [
        PromptItem(row["prompt"], fields=row) for row in ROWS
    ]


@pytest.mark.parametrize("make", [clone, saved_to_disk])
def test_held_out_split_of_a_directory(make: Maker, tmp_path: Path) -> None:
    source = build_prompts(make(tmp_path), held_out=True, size=64)
    assert [source.item(i).text for i in range(len(source))] == ["Question 0?", "Question 1?"]


@pytest.mark.parametrize("writer", [write_jsonl, write_parquet])
def test_chat_messages(writer: Callable[[Path, Any], Path], tmp_path: Path) -> None:
    fields = {
        "source": "jsonl" if writer is write_jsonl else "parquet",
        "path": str(writer(tmp_path / "chats", CHATS)),
        "messages_field": "messages",
    }
    section = DatasetSection.model_validate(fields)
    check_prompts(lambda: build_prompts(section))
    item = build_prompts(section).item(1)
    assert item.text is None and item.fields["answer"] == 1
    assert item.messages == tuple(CHATS[1]["messages"])  # type: ignore[arg-type]


def test_fields_are_mapped(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "q.jsonl", [{"q": "2+2?", "a": "4", "why": "sum"}])
    section = DatasetSection(source="jsonl", path=str(path), prompt_field="q", answer_field="a")
    item = build_prompts(section).item(0)
    assert item.text == "2+2?"
    assert item.fields == {"q": "2+2?", "a": "4", "answer": "4", "why": "sum"}


# --------------------------------------------------------------------------------- procedural


def test_tiny_splits_are_disjoint_and_capped() -> None:
    section = DatasetSection(source="tiny", size=50_000, seed=3)
    train = build_prompts(section)
    held = build_prompts(section, held_out=True, size=64)
    assert (len(train), len(held)) == (9_000, 64)
    seen = {train.item(i).text for i in range(len(train))}
    assert len(seen) == 9_000
    assert not seen & {held.item(i).text for i in range(64)}
    assert train.item(0).fields.keys() == {"answer"}


def test_reasoning_gym_splits_are_disjoint_by_seed() -> None:
    import reasoning_gym

    section = DatasetSection(source="reasoning_gym", name="chain_sum", size=20, seed=5)
    train, held = build_prompts(section), build_prompts(section, held_out=True, size=4)
    for source, first in ((train, 5), (held, 5 + HELD_OUT_OFFSET)):
        for i in range(len(source)):
            expected = reasoning_gym.create_dataset("chain_sum", seed=first + i, size=1)[0]
            assert source.item(i).text == expected["question"]
            assert source.item(i).fields["answer"] == expected["answer"]


@pytest.mark.parametrize("field", [{"seed": 1}, {"size": 8}, {"args": {"max_terms": 4}}])
def test_whatever_changes_procedural_content_changes_the_digest(
    field: dict[str, Any], tmp_path: Path
) -> None:
    section = gym(tmp_path)
    other = section.model_copy(update=field)
    digests = {
        build_prompts(section).digest,
        build_prompts(other).digest,
        build_prompts(section, held_out=True).digest,
    }
    assert len(digests) == 3


def test_digest_of_files_follows_content_not_place(tmp_path: Path) -> None:
    first = write_jsonl(tmp_path / "a.jsonl", ROWS)
    second = write_jsonl(tmp_path / "b.jsonl", ROWS)
    third = write_jsonl(tmp_path / "c.jsonl", ROWS[::-1])
    a, b, c = (
        build_prompts(DatasetSection(source="jsonl", path=str(path))).digest
        for path in (first, second, third)
    )
    assert a == b != c


# ----------------------------------------------------------------------------------- mistakes


def test_an_unreadable_row_is_a_data_failure_naming_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = json.dumps(ROWS[0]).encode()
    lines = [
        good,
        b'{"prompt": "cut off',
        b'{"prompt": "\xff", "answer": 1}',
        b"[1, 2]",
        b'{"prompt": 5, "answer": 1}',
        b'{"prompt": "no answer"}',
        good,
    ]
    path.write_bytes(b"\n".join(lines))
    section = DatasetSection(source="jsonl", path=str(path))
    check_prompts(lambda: build_prompts(section))
    source = build_prompts(section)
    for row, why in (
        (1, "is unreadable: Invalid control"),
        (2, "is unreadable: .*utf-8"),
        (3, "is a list, not an object"),
        (4, "column 'prompt' holds 5; a non-empty text"),
        (5, "column 'answer' is missing"),
    ):
        with pytest.raises(DataFailure, match=rf"rows\.jsonl row {row}:? ?{why}"):
            source.item(row)
    assert source.item(6).text == "Question 0?"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "holds \\[\\]"),
        ("hello", "holds 'hello'"),
        ([{"role": "user"}], r"has \{'role': 'user'\}"),
        ([{"role": "user", "content": 3}], "has"),
    ],
)
def test_bad_messages_are_data_failures(value: Any, why: str, tmp_path: Path) -> None:
    rows = [{"messages": value, "answer": ""}]
    section = DatasetSection(
        source="jsonl",
        path=str(write_jsonl(tmp_path / "chats.jsonl", rows)),
        messages_field="messages",
    )
    with pytest.raises(DataFailure, match=f"row 0: column 'messages' {why}"):
        build_prompts(section).item(0)


def test_a_file_that_changes_under_the_run_is_refused(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", ROWS)
    source = build_prompts(DatasetSection(source="jsonl", path=str(path)))
    os.utime(path, ns=(1, 1))
    with pytest.raises(RefusedState, match="changed while the run reads it"):
        source.item(0)
    path.unlink()
    with pytest.raises(RefusedState, match="No such file"):
        source.item(0)


def test_missing_columns_are_listed(tmp_path: Path) -> None:
    for make in FILES:
        section = make(tmp_path / make.__name__)
        listed = "answer, level, prompt"
        for field in ("prompt_field", "messages_field", "answer_field"):
            broken = section.model_copy(update={field: "nope"})
            with pytest.raises(RecipeError, match=rf"dataset\.{field} is 'nope'.*{listed}"):
                build_prompts(broken)


MISTAKES: list[tuple[dict[str, Any], bool, str]] = [
    ({"source": "jsonl"}, False, r"dataset\.path must name a file"),
    ({"source": "jsonl", "path": "/no/file"}, False, r"dataset\.path is '/no/file'; there is no"),
    ({"source": "jsonl", "path": "x"}, True, r"dataset\.held_out must name.*validation\.enabled"),
    ({"source": "hf"}, False, r"dataset\.name must be a dataset directory"),
    ({"source": "hf", "name": "/no/dir"}, False, "there is no such directory"),
    ({"source": "reasoning_gym"}, False, r"dataset\.name must name its task"),
    ({"source": "reasoning_gym", "name": "nope"}, False, "'nope'; reasoning-gym has .*chain_sum"),
    (
        {"source": "reasoning_gym", "name": "chain_sum", "args": {"bad": 1}},
        False,
        r"dataset\.args of reasoning-gym task chain_sum: .*bad",
    ),
    (
        {"source": "reasoning_gym", "name": "chain_sum", "args": {"min_terms": -1}},
        False,
        "min_terms must be positive",
    ),
]


@pytest.mark.parametrize(("fields", "held_out", "message"), MISTAKES)
def test_mistakes_are_recipe_errors(fields: dict[str, Any], held_out: bool, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_prompts(DatasetSection(**fields), held_out=held_out)


def test_splits_are_listed_and_never_shared(tmp_path: Path) -> None:
    section = clone(tmp_path)
    with pytest.raises(RecipeError, match=r"dataset\.split is 'dev'.*splits train, validation"):
        build_prompts(section.model_copy(update={"split": "dev"}))
    with pytest.raises(RecipeError, match=r"dataset\.held_out is None.*train, validation"):
        build_prompts(section.model_copy(update={"held_out": None}), held_out=True)
    with pytest.raises(RecipeError, match="are both 'train'; they must differ"):
        build_prompts(section.model_copy(update={"held_out": "train"}), held_out=True)


def test_a_saved_dataset_with_row_indices_is_refused(tmp_path: Path) -> None:
    section = saved_to_disk(tmp_path)
    state = {"_split": "train", "_indices_data_files": [{"filename": "indices.arrow"}]}
    (tmp_path / "train" / "state.json").write_text(json.dumps(state))
    with pytest.raises(RecipeError, match="saved with row indices; call flatten_indices"):
        build_prompts(section)
    (tmp_path / "train" / "state.json").write_text("{")
    with pytest.raises(RecipeError, match=r"state\.json is unreadable"):
        build_prompts(section)


def test_files_that_are_not_what_they_say_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"not parquet at all")
    with pytest.raises(RecipeError, match=r"rows\.parquet is not a readable parquet file"):
        build_prompts(DatasetSection(source="parquet", path=str(path)))
    path.write_bytes(b"\n \n")
    with pytest.raises(RecipeError, match="the dataset has no rows"):
        build_prompts(DatasetSection(source="jsonl", path=str(path)))
    path.write_bytes(b"[\n1]\n")
    with pytest.raises(RecipeError, match="no columns can be read"):
        build_prompts(DatasetSection(source="jsonl", path=str(path)))


def test_sums_split_by_problem_and_go_round_them_again() -> None:
    section = DatasetSection(source="sums", size=200, args={"digits": 1})
    source, held_out = build_prompts(section), build_prompts(section, held_out=True, size=64)
    assert (len(source), len(held_out)) == (200, 20)
    questions = {source.item(index).text for index in range(len(source))}
    assert len(questions) == 80
    assert source.item(0) == source.item(80)
    assert not questions & {held_out.item(index).text for index in range(20)}
    assert source.digest != held_out.digest
    with pytest.raises(RecipeError, match="digits is 3; sums have 1 or 2"):
        build_prompts(DatasetSection(source="sums", args={"digits": 3}))
