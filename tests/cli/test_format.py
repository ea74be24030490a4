"""Numbers for people."""

from __future__ import annotations

import pytest

from outlast.cli import format as fmt


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0801, "80 ms"),
        (0.99951, "1.0 s"),
        (3.44, "3.4 s"),
        (9.96, "10 s"),
        (59.6, "1 m 00 s"),
        (94, "1 m 34 s"),
        (3599.7, "1 h 00 m"),
        (11_100, "3 h 05 m"),
        (187_200, "2 d 04 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert fmt.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (999.96, "1.0 k"), (12_345, "12.3 k"), (4.06e6, "4.1 M")],
)
def test_count(value: float, text: str) -> None:
    assert fmt.count(value) == text


def test_size() -> None:
    assert [fmt.size(n) for n in (0, 812, 2_700_000)] == ["0 B", "812 B", "2.7 MB"]


def test_sparkline_spans_its_own_range_and_averages_down() -> None:
    assert fmt.sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert fmt.sparkline([0, 0, 1, 1], 2) == "▁█"
    assert len(fmt.sparkline([float(i) for i in range(1000)], 40)) == 40
    assert fmt.sparkline([0.5, 0.5], 10) == "▄▄"
    assert fmt.sparkline([], 10) == ""


def test_table_aligns_and_indents_further_lines() -> None:
    assert fmt.table([("a", "1"), ("long", "2\n3")]) == "  a     1\n  long  2\n        3"


def test_plural() -> None:
    assert (fmt.plural(1, "row"), fmt.plural(1200, "row")) == ("1 row", "1,200 rows")
