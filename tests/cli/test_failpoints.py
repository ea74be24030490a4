"""Failpoints: the registry is what stands in the code, and what is asked for is what happens."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast
from outlast.cli.failpoints import (
    ACTIONS,
    FAILPOINTS,
    VARIABLE,
    Failpoint,
    Failpoints,
    from_environment,
    parse,
)
from outlast.errors import DiskError, DiskFull, RecipeError
from outlast.world import no_mark

SOURCE = Path(outlast.__file__).parent
PUBLISHED = ("snapshot", "checkpoint")
"""`durable.publish` marks both kinds of trees by the part after the dot."""


def _marks() -> Iterator[str]:
    """Every name that production code gives to `perhaps` or `mark`."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "testing" in path.relative_to(SOURCE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("perhaps", "_mark") or len(node.args) != 1:
                continue
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield from _expanded(name.value)


def _expanded(name: str) -> tuple[str, ...]:
    return (name,) if "." in name else tuple(f"{kind}.{name}" for kind in PUBLISHED)


def test_the_registry_is_what_stands_in_the_code() -> None:
    assert set(_marks()) == set(FAILPOINTS)
    assert len(FAILPOINTS) >= 25 and all(FAILPOINTS.values())


def test_nothing_is_armed_without_the_variable() -> None:
    assert from_environment({}) is no_mark
    assert from_environment({VARIABLE: ""}) is no_mark


def test_a_count_names_the_hit() -> None:
    assert parse("train.applied:kill, snapshot.cut:disk_full:2+") == (
        Failpoint("train.applied", "kill"),
        Failpoint("snapshot.cut", "disk_full", 2, every=True),
    )
    third = Failpoints(parse("snapshot.cut:disk_full:3"))
    hits = [_outcome(third, "snapshot.cut") for _ in range(5)]
    assert hits == [None, None, DiskFull, None, None]
    later = Failpoints(parse("snapshot.cut:disk_error:2+"))
    assert [_outcome(later, "snapshot.cut") for _ in range(3)] == [None, DiskError, DiskError]
    assert _outcome(later, "snapshot.rows_saved") is None


def _outcome(points: Failpoints, name: str) -> type[Exception] | None:
    try:
        points(name)
    except DiskError as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("snapshot.after_renam:kill", "did you mean snapshot.after_rename?"),
        ("snapshot.after_rename:explode", "required: one of kill, term"),
        ("snapshot.after_rename", "required: one of kill, term"),
        ("snapshot.after_rename:kill:0", "required: 3, or 3+"),
        ("snapshot.after_rename:kill:x+", "required: 3, or 3+"),
    ],
)
def test_a_typo_is_refused_with_what_is_known(text: str, said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        parse(text)
    assert said in str(refused.value)


def test_an_unknown_name_lists_all_names() -> None:
    with pytest.raises(RecipeError) as refused:
        parse("nowhere:kill")
    assert all(name in str(refused.value) for name in FAILPOINTS)


@pytest.mark.parametrize(("action", "number"), [("kill", signal.SIGKILL), ("term", signal.SIGTERM)])
def test_signals_are_real(action: str, number: signal.Signals) -> None:
    assert action in ACTIONS
    code = (
        "from outlast.cli.failpoints import Failpoints, parse\n"
        f"Failpoints(parse('log.synced:{action}'))('log.synced')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == -number


def test_the_program_refuses_an_unknown_failpoint_with_78(outlast, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "nowhere:kill")
    done = outlast("train", "--run-dir", tmp_path / "run")
    assert done.exit_code == 78 and "there is no failpoint 'nowhere'" in done.stderr
    assert not (tmp_path / "run").exists()
