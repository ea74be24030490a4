"""What holds for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}


def _restore() -> None:
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def signals_of_the_test_process() -> Iterator[None]:
    """`outlast train` inside this process leaves it, at its end, deaf to stop requests; a child
    that a later test starts would inherit that. Restored before too: wider fixtures train as well.
    """
    _restore()
    yield
    _restore()
