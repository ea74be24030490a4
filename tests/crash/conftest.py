"""How deep to look: `make crash` names this directory and gets everything, other runs a share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

_LINES: list[str] = []


@pytest.fixture(scope="session")
def exhaustive(pytestconfig: pytest.Config) -> bool:
    return any("crash" in argument for argument in pytestconfig.args)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """Lines for the terminal summary."""
    yield _LINES


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _LINES:
        terminalreporter.section("crash enumeration")
        for line in _LINES:
            terminalreporter.write_line(line)
