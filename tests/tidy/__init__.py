"""The house style as code: lists what in `src/outlast` breaks a rule (see `CONTRIBUTING.md`).

`tests/test_tidy.py` turns every finding into a failure and tests each rule on small snippets.
`python -m tests.tidy` prints the size figures. A finding is excused only by an entry of `ALLOWED`
with a reason or, for broad handlers, by `# boundary: <name>` on the line of the handler.
May import: the standard library and its own parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from tests.tidy.imports import check_forbidden_imports, cycles, import_graph
from tests.tidy.rules import (
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    NESTING_MAX,
    check_any,
    check_docstring,
    check_handlers,
    check_positional,
    check_size,
    file_lines,
    function_lines,
    nesting,
)
from tests.tidy.source import Finding, Function, Module, functions, load, parse

__all__ = [
    "ALLOWED",
    "FILE_LINES_MAX",
    "FUNCTION_LINES_MAX",
    "NESTING_MAX",
    "Finding",
    "Function",
    "Module",
    "cycles",
    "figures",
    "findings",
    "functions",
    "import_graph",
    "load",
    "nesting",
    "parse",
    "quantile",
    "report",
    "unexcused",
]

FILE_LINES_MEDIAN_MAX: Final = 180
FUNCTION_LINES_MEDIAN_MAX: Final = 10

# (rule, place) -> why the rule must give way there. A place is "module::qualified.name" with
# wildcards, and "module::*" for a whole file. Entries that excuse nothing fail the test.
ALLOWED: Final[Mapping[tuple[str, str], str]] = {}

CHECKS: Final = (
    check_size,
    check_positional,
    check_any,
    check_docstring,
    check_handlers,
    check_forbidden_imports,
)


def findings(modules: list[Module]) -> list[Finding]:
    """Everything that breaks a rule, before `ALLOWED` is applied."""
    found = [finding for module in modules for check in CHECKS for finding in check(module)]
    for component in cycles(import_graph(modules)):
        detail = " <-> ".join(component)
        found.append(Finding(rule="cycle", place=f"{component[0]}::*", line=1, detail=detail))
    return found


def unexcused(
    found: list[Finding], allowed: Mapping[tuple[str, str], str]
) -> tuple[list[Finding], list[tuple[str, str]]]:
    """Split by the allow-list: findings without an entry, and entries without a finding (stale)."""

    def covers(entry: tuple[str, str], finding: Finding) -> bool:
        return entry[0] == finding.rule and fnmatchcase(finding.place, entry[1])

    left = [f for f in found if not any(covers(entry, f) for entry in allowed)]
    stale = [entry for entry in allowed if not any(covers(entry, f) for f in found)]
    return left, stale


def quantile(values: list[int], q: float) -> int:
    """Nearest-rank quantile; 0 for no values."""
    if not values:
        return 0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(q * 1000) * len(ordered) // 1000) - 1))]


def figures(modules: list[Module]) -> dict[str, list[int]]:
    """Lines per file and per function (docstrings of functions left out)."""
    return {
        "lines per file": [file_lines(m) for m in modules],
        "lines per function": [function_lines(f) for m in modules for f in functions(m)],
    }


def report(modules: list[Module]) -> str:
    """The figures as text: count, median, p95, max."""
    rows = [
        f"{label:<20} n={len(v):<5} median={quantile(v, 0.5):<4} p95={quantile(v, 0.95):<4} "
        f"max={max(v, default=0)}"
        for label, v in figures(modules).items()
    ]
    return "\n".join(rows)
