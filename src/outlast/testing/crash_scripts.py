"""The lives that the crash harness runs.

May import: `testing.crash_scenario`.
"""

from __future__ import annotations

from collections.abc import Callable

from outlast.errors import DiskError, OutlastError
from outlast.testing.crash_scenario import Life

Script = Callable[[Life], None]


def short_script(life: Life) -> None:
    """Two snapshots and a trainer checkpoint, with retention of each; one attempt decodes on."""
    life.keep = 1
    life.draw(3)
    life.begin(1)
    life.snapshot()
    life.draw(2)
    life.grow()
    life.snapshot()
    life.grow()
    life.step(2)


def long_script(life: Life) -> None:
    """Snapshots and checkpoints until every kind of retention has had a victim."""
    life.keep = 1
    life.draw(3)
    life.snapshot()
    life.begin(2)
    life.snapshot()
    life.step(2)
    life.grow()
    life.draw(2)
    life.snapshot()
    life.step(1)
    life.finish()
    life.snapshot()
    life.step(3)
    life.draw(1)
    life.snapshot()
    life.end()


def tolerant(script: Callable[[Life], None]) -> Callable[[Life], list[OutlastError]]:
    """`script` with each operation allowed to fail, as the runtime goes on after a failed save."""

    def run(life: Life) -> list[OutlastError]:
        proxy = _Tolerant(life)
        script(proxy)  # type: ignore[arg-type]  # the same operations
        return proxy.errors

    return run


class _Tolerant:
    def __init__(self, life: Life) -> None:
        self._life = life
        self.keep = life.keep
        self.errors: list[OutlastError] = []

    def draw(self, count: int) -> None:
        self._life.draw(count)

    def begin(self, count: int) -> None:
        self._life.begin(count)

    def grow(self) -> None:
        self._life.grow()

    def finish(self) -> None:
        self._life.finish()

    def snapshot(self) -> None:
        self._life.keep = self.keep
        self._try(self._life.snapshot)

    def step(self, consumed: int) -> None:
        self._try(lambda: self._life.step(consumed))

    def end(self) -> None:
        self._try(self._life.end)

    def _try(self, operation: Callable[[], None]) -> None:
        try:
            operation()
        except DiskError as error:
            self.errors.append(error)
