"""Mutants of forks and exports: see `crash_mutants` and `crash_fork`.

May import: `durable`, `testing.crash_*`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from unittest import mock

from outlast.durable import staging
from outlast.durable.files import Files
from outlast.testing.crash_enumeration import Tally
from outlast.testing.crash_fork import NEW, Making, all_makings, enumerate_making
from outlast.testing.crash_mutants import Patch, skipping_fsync, skipping_fsync_dir


@dataclass(frozen=True, slots=True)
class MakingMutant:
    """One changed step, and the number of the making in `all_makings` that shows it."""

    name: str
    patch: Patch
    making: int

    def run(self, tally: Tally) -> None:
        """Enumerate under the mutant. Raises LawBroken."""
        making: Making = all_makings()[self.making]
        with self.patch():
            enumerate_making(making, models="KO", tally=tally)


def _never_synced() -> AbstractContextManager[object]:
    def sync_tree(files: Files, top: object) -> None:
        """What the other package left in the page cache stays there."""

    return mock.patch.object(staging, "sync_tree", sync_tree)


def _in_scaffold(path: str) -> bool:
    return ".forking/" in path


MAKING_MUTANTS: tuple[MakingMutant, ...] = (
    MakingMutant("fork renamed before its files are synced", skipping_fsync(_in_scaffold), 1),
    MakingMutant(
        "fork renamed before its directories are synced", skipping_fsync_dir(_in_scaffold), 1
    ),
    MakingMutant(
        "fork acknowledged before its name is durable",
        skipping_fsync_dir(lambda path: path == str(NEW.parent)),
        1,
    ),
    MakingMutant("export renamed before its files are synced", _never_synced, 2),
)
