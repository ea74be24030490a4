"""The house style holds over `src/outlast`, and every rule of `tests/tidy` can fail.

The first part judges the sources. The second gives each rule a snippet that breaks it and one that
does not, so that a rule which stopped finding anything would be noticed. Figures: `pytest -s`, or
`python -m tests.tidy`.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from tests import tidy

MODULES = tidy.load()
FOUND = tidy.findings(MODULES)
RULES = (
    "file-length",
    "function-length",
    "nesting",
    "positional",
    "any",
    "docstring",
    "broad-except",
    "cancellation",
    "forbidden-import",
    "cycle",
)


# --- the sources ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
def test_sources_keep(rule: str) -> None:
    left, _ = tidy.unexcused([f for f in FOUND if f.rule == rule], tidy.ALLOWED)
    assert not left, "\n" + "\n".join(map(str, left))


def test_every_rule_that_reports_is_judged() -> None:
    assert {f.rule for f in FOUND} <= set(RULES)
    assert {rule for rule, _ in tidy.ALLOWED} <= set(RULES)


def test_allow_list_has_reasons_and_no_stale_entry() -> None:
    _, stale = tidy.unexcused(FOUND, tidy.ALLOWED)
    assert not stale, f"entries of ALLOWED that excuse nothing: {stale}"
    vague = [entry for entry, reason in tidy.ALLOWED.items() if len(reason.split()) < 4]
    assert not vague, f"entries of ALLOWED whose reason says nothing: {vague}"


def test_medians_and_figures() -> None:
    print("\n" + tidy.report(MODULES))
    figures = tidy.figures(MODULES)
    assert tidy.quantile(figures["lines per file"], 0.5) < tidy.FILE_LINES_MEDIAN_MAX
    assert tidy.quantile(figures["lines per function"], 0.5) < tidy.FUNCTION_LINES_MEDIAN_MAX


def test_the_sources_were_found() -> None:
    names = {module.name for module in MODULES}
    assert "outlast" in names
    assert len(names) == len(MODULES)


# --- the rules ------------------------------------------------------------------------------------


def module(text: str, *, name: str = "outlast.sample", is_package: bool = False) -> tidy.Module:
    return tidy.parse(name, dedent(text), is_package=is_package)


def rules(text: str, *, name: str = "outlast.sample") -> list[str]:
    """Rules broken by a snippet that gets a docstring, so that only the point at issue shows."""
    return [f.rule for f in tidy.findings([module('"""Doc."""\n' + dedent(text), name=name)])]


def only(text: str) -> tidy.Function:
    (function,) = tidy.functions(module(text))
    return function


def test_file_length_counts_from_the_first_line_over() -> None:
    at_limit = '"""Doc."""\n' + "x = 1\n" * (tidy.FILE_LINES_MAX - 1)
    assert not tidy.findings([module(at_limit)])
    (finding,) = tidy.findings([module(at_limit + "x = 1\n")])
    assert finding.rule == "file-length"
    assert f"{tidy.FILE_LINES_MAX + 1} lines" in str(finding)


def test_function_length_leaves_the_docstring_and_decorators_out() -> None:
    body = "    x = 1\n" * (tidy.FUNCTION_LINES_MAX - 1)
    assert rules(f"def f():\n{body}") == []
    assert rules(f"def f():\n{body}    x = 2\n") == ["function-length"]
    assert rules(f'@cache\ndef f():\n    """One.\n\n    Two.\n    """\n{body}') == []


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        ("x = 1", 0),
        ("if a:\n        b", 1),
        ("if a:\n        b\n    elif c:\n        d\n    elif e:\n        f", 1),
        ("if a:\n        b\n    else:\n        if c:\n            d", 2),
        ("for a in b:\n        while c:\n            with d:\n                e", 3),
        ("try:\n        a\n    except E:\n        if b:\n            c", 2),
        ("match a:\n        case 1:\n            if b:\n                c", 2),
        ("return [b for a in c for b in a if b]", 0),
    ],
)
def test_nesting_depth(body: str, depth: int) -> None:
    assert tidy.nesting(only(f"def f():\n    {body}\n")) == depth


def test_nesting_limit_and_nested_functions_start_again() -> None:
    def tower(levels: int, leaf: str) -> str:
        lines = [f"{'    ' * (i + 1)}if a:" for i in range(levels)]
        return "\n".join(["def f():", *lines, f"{'    ' * (levels + 1)}{leaf}", ""])

    assert rules(tower(tidy.NESTING_MAX, "x")) == []
    assert rules(tower(tidy.NESTING_MAX + 1, "x")) == ["nesting"]
    inner = "\n    ".join(["def g():", *tower(3, "x").splitlines()[1:]])
    assert rules(f"def f():\n    if a:\n        if b:\n            c\n    {inner}\n") == []


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("def f(a, b): ...", False),
        ("def f(a, b, c): ...", True),
        ("def f(a, b, *, c, d): ...", False),
        ("def f(a, /, b, c): ...", True),
        ("def f(*args, **kwargs): ...", False),
        ("async def f(a, b, c=1): ...", True),
        ("class C:\n    def m(self, a, b): ...", False),
        ("class C:\n    def m(self, a, b, c): ...", True),
        ("class C:\n    @classmethod\n    def m(cls, a, b): ...", False),
        ("class C:\n    @staticmethod\n    def m(a, b, c): ...", True),
        ("class C:\n    def __exit__(self, kind, value, trace): ...", False),
        ("class C:\n    def __init__(self, a, b, c): ...", True),
        ("class C:\n    @override\n    def m(self, a, b, c): ...", False),
        ("def f():\n    def g(a, b, c): ...", True),
    ],
)
def test_positional(text: str, broken: bool) -> None:
    assert rules(text) == (["positional"] if broken else [])


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("def f(a: Any) -> int: ...", True),
        ("def f(a: int) -> dict[str, Any]: ...", True),
        ("def f(a: typing.Any) -> int: ...", True),
        ("from typing import Any as Whatever\ndef f(*a: Whatever): ...", True),
        ("def f(a: 'list[Any]'): ...", True),
        ("class C:\n    field: Any", True),
        ("class C:\n    def m(self, *, a: Any = 1): ...", True),
        ("def f(a: object, b: Literal['Anything']) -> int: ...", False),
        ("def f():\n    a: Any = 1", False),
    ],
)
@pytest.mark.parametrize("name", ["outlast.model.x", "outlast.durable", "outlast.modelling"])
def test_any_only_where_types_carry_the_proof(text: str, broken: bool, name: str) -> None:
    judged = name != "outlast.modelling"
    assert ("any" in rules(text, name=name)) is (broken and judged)


def test_docstring() -> None:
    assert [f.rule for f in tidy.findings([module("x = 1\n")])] == ["docstring"]
    assert [f.rule for f in tidy.findings([module('"""  """\n')])] == ["docstring"]
    assert [f.rule for f in tidy.findings([module('"""What it is."""\n')])] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("try:\n    a\nexcept ValueError:\n    b", None),
        ("try:\n    a\nexcept Exception:\n    tidy_up()\n    raise", None),
        ("try:\n    a\nexcept Exception:\n    raise ValueError", "broad-except"),
        ("try:\n    a\nexcept Exception:\n    if b:\n        raise", "broad-except"),
        ("try:\n    a\nexcept:\n    b", "broad-except"),
        ("try:\n    a\nexcept (ValueError, BaseException):\n    b", "broad-except"),
        ("try:\n    a\nexcept builtins.Exception as e:\n    b", "broad-except"),
        ("try:\n    a\nexcept Exception:  # boundary: reward function\n    b", None),
        ("try:\n    a\nexcept Exception:  # boundary:\n    b", "broad-except"),
        ("with suppress(Exception):\n    a", "broad-except"),
        ("with contextlib.suppress(OSError):\n    a", None),
        ("try:\n    a\nexcept asyncio.CancelledError:\n    b", "cancellation"),
        ("try:\n    a\nexcept asyncio.CancelledError:\n    b\n    raise", None),
        ("try:\n    a\nexcept CancelledError:  # boundary: join of a child\n    b", None),
        ("with suppress(asyncio.CancelledError):\n    a", "cancellation"),
    ],
)
def test_handlers(text: str, rule: str | None) -> None:
    assert rules(text) == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("name", "text", "broken"),
    [
        ("outlast.model.ids", "import asyncio", True),
        ("outlast.model.ids", "def f():\n    from torch.nn import Linear", True),
        ("outlast.model.ids", "import hashlib", False),
        ("outlast.runtime.train", "import asyncio", False),
        ("outlast.runtime.train", "if TYPE_CHECKING:\n    import torch", True),
        ("outlast.runtime.train", "import time", True),
        ("outlast.adapters.engines", "import torch, time", False),
    ],
)
def test_forbidden_imports(name: str, text: str, broken: bool) -> None:
    assert rules(text, name=name) == (["forbidden-import"] if broken else [])


def graph_of(**texts: str) -> dict[str, set[str]]:
    """Import graph of modules given as `a__b="source"` for `outlast.a.b`; `pkg` is a package."""
    return tidy.import_graph(
        [
            module(text, name="outlast." + name.replace("__", "."), is_package=name == "pkg")
            for name, text in texts.items()
        ]
    )


def test_import_graph_resolves_names() -> None:
    graph = graph_of(
        a="from outlast import b\nimport outlast.pkg.c\nimport os",
        b="from outlast.a import thing\nfrom . import a",
        pkg="from .c import thing",
        pkg__c="from outlast.pkg import other\nfrom ..b import x",
    )
    assert graph == {
        "outlast.a": {"outlast.b", "outlast.pkg.c"},
        "outlast.b": {"outlast.a"},
        "outlast.pkg": {"outlast.pkg.c"},
        "outlast.pkg.c": {"outlast.pkg", "outlast.b"},
    }


def test_cycles_count_deferred_imports() -> None:
    graph = graph_of(
        a="def f():\n    from outlast.b import x",
        b="import outlast.c",
        c="if TYPE_CHECKING:\n    from outlast import a",
        d="import outlast.a",
    )
    assert tidy.cycles(graph) == [["outlast.a", "outlast.b", "outlast.c"]]
    graph["outlast.c"].clear()
    assert tidy.cycles(graph) == []


def test_a_cycle_is_a_finding() -> None:
    a = module('"""Doc."""\nimport outlast.b', name="outlast.a")
    b = module('"""Doc."""\nimport outlast.a', name="outlast.b")
    assert [f.rule for f in tidy.findings([a, b])] == ["cycle"]


def test_allow_list_excuses_by_rule_and_place_only() -> None:
    found = tidy.findings(
        [module('"""Doc."""\nclass L:\n    def m(self, a, b, c): ...\n', name="outlast.x")]
    )
    fitting = {("positional", "outlast.x::L.*"): "the loop interface fixes this signature"}
    assert tidy.unexcused(found, fitting) == ([], [])
    for entry in [("nesting", "outlast.x::L.*"), ("positional", "outlast.x::K.*")]:
        assert tidy.unexcused(found, {entry: "a reason of four words"}) == (found, [entry])


def test_quantile_is_nearest_rank() -> None:
    assert tidy.quantile([], 0.5) == 0
    assert tidy.quantile([3, 1, 2], 0.5) == 2
    assert tidy.quantile(list(range(1, 101)), 0.95) == 95
    assert tidy.quantile([7], 0.95) == 7


def test_load_names_modules_and_packages(tmp_path: Path) -> None:
    package = tmp_path / "pkg" / "sub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('"""Doc."""\n')
    (package / "leaf.py").write_text('"""Doc."""\n')
    loaded = {m.name: m.is_package for m in tidy.load(tmp_path / "pkg")}
    assert loaded == {"pkg.sub": True, "pkg.sub.leaf": False}
