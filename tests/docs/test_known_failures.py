"""docs/known-failures.md names tests that exist, leaves no number out, and counts right."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "known-failures.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (c?\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
REFERENCE = re.compile(r"`([a-z_0-9/]+\.py)(?:::(\w+))?`")
NUMBERS = [str(n) for n in range(1, 84)]
NUMBERS += [f"c{n}" for n in range(1, 163) if n not in (146, 147)]  # those were never given out
KINDS = {
    "cannot occur": re.compile(r"cannot occur: "),
    "belong to later engines": re.compile(r"later: "),
    "open": re.compile(r"open: "),
}


def test_every_number_stands_there_exactly_once() -> None:
    found = Counter(number for number, _, _ in ROW.findall(PAGE))
    assert found == Counter(NUMBERS)


def test_every_row_names_a_test_or_a_reason() -> None:
    for number, _, cell in ROW.findall(PAGE):
        stated = any(start.match(cell) for start in KINDS.values())
        assert stated or REFERENCE.match(cell), f"row {number} names neither test nor reason"


def test_the_counts_are_those_of_the_rows() -> None:
    cells = [cell for _, _, cell in ROW.findall(PAGE)]
    counts = {name: sum(bool(k.match(cell)) for cell in cells) for name, k in KINDS.items()}
    counts["covered by a test"] = len(cells) - sum(counts.values())
    counts["of these only in part"] = sum("in part: " in cell for cell in cells)
    for name, count in counts.items():
        assert f"| {name} | {count} |" in PAGE
    assert f"| of {len(cells)} kinds |" in PAGE


def test_every_test_named_exists() -> None:
    named = set(REFERENCE.findall(PAGE))
    assert len(named) > 150
    for file, function in sorted(named):
        path = ROOT / "tests" / file
        assert path.is_file(), f"tests/{file} does not exist"
        if function:
            text = path.read_text(encoding="utf-8")
            assert re.search(rf"\bdef {function}\(", text), f"{file} has no {function}"


def test_every_planted_bug_named_exists() -> None:
    sources = (ROOT / "src" / "outlast" / "testing").glob("planted*.py")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    names = {
        name
        for found in re.findall(r"test_planted_bug_is_found` \(([a-z_, ]+)\)", PAGE)
        for name in found.split(", ")
    }
    assert len(names) > 15
    assert [name for name in sorted(names) if f"def {name}(" not in text] == []
