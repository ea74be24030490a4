"""Crash-point enumeration as a program: ``python -m outlast.testing.crashes [--write FILE]``.

Prints how many crash states were judged per model, what the I/O-error loop did, and for every
mutant of the protocol the law that killed it. May import: `testing.crash_*`.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from outlast.testing.crash_disk import CrashDisk, Fault, FaultKind
from outlast.testing.crash_enumeration import Enumeration, Tally
from outlast.testing.crash_facts import Promises
from outlast.testing.crash_faults import FaultLoop, FaultTally, faults_of
from outlast.testing.crash_fork import all_makings, enumerate_making, fail_making, make_twice
from outlast.testing.crash_fork_mutants import MAKING_MUTANTS, MakingMutant
from outlast.testing.crash_image import Image
from outlast.testing.crash_laws import LawBroken
from outlast.testing.crash_mutants import EQUIVALENT, MUTANTS, Mutant
from outlast.testing.crash_prefix_mutants import PREFIX_MUTANTS
from outlast.testing.crash_scenario import Life
from outlast.testing.crash_scripts import Script, long_script, short_script
from outlast.testing.crash_takeover import enumerate_takeovers


@dataclass(frozen=True, slots=True)
class Killed:
    """What became of a mutant; `law` None when it survived."""

    name: str
    law: str | None
    states: int
    message: str


def enumerate_script(script: Script, *, models: str, rot: bool = True) -> Tally:
    """All crash states of one life. Raises LawBroken."""
    enumeration = Enumeration(models=models)
    disk, promises = enumeration.run(script)
    if rot:
        enumeration.rot(disk, promises)
    return enumeration.tally


def second_life(life: Life) -> None:
    """What a restart does after its start: draw, publish, train a step that existed before."""
    life.draw(1)
    life.grow()
    life.snapshot()
    life.step(1)


def enumerate_recovery(*, models: str, every: int) -> Tally:
    """Crash again during recovery: enumerate the second life on every n-th state of the first."""
    images: list[tuple[Image, Promises]] = []
    first = CrashDisk()
    promises = Promises()
    seen: set[object] = set()

    def collect(change: str) -> None:
        promises.notice(change)
        for image in first.ordered(cap=64):
            signature = image.live_signature()
            if signature not in seen:
                seen.add(signature)
                images.append((image, promises.frozen()))

    first.on_change = collect
    life = Life(first, promises)
    life.start()
    short_script(life)
    enumeration = Enumeration(models=models)
    for image, held in images[:: max(1, every)]:
        enumeration.run(second_life, image=image, promises=held)
    return enumeration.tally


def run_faults(script: Script, *, stride: int = 1, offset: int = 0) -> FaultTally:
    """The I/O-error loop, or every `stride`-th part of it. Raises LawBroken."""
    loop = FaultLoop(script)
    for fault in list(faults_of(script))[offset::stride]:
        loop.run(fault)
    return loop.tally


def run_mutant(mutant: Mutant) -> Killed:
    """Enumerate under the mutant until a law breaks."""
    enumeration = Enumeration(models="KO", weak_cap=8)
    with mutant.patch():
        try:
            if mutant.retries_fsync:
                _run_failing_fsyncs(mutant.script)
            else:
                disk, promises = enumeration.run(mutant.script)
                enumeration.rot(disk, promises)
        except LawBroken as broken:
            states = sum(enumeration.tally.states.values())
            return Killed(mutant.name, broken.law, states, str(broken))
    return Killed(mutant.name, None, sum(enumeration.tally.states.values()), "")


def run_making_mutant(mutant: MakingMutant) -> Killed:
    """Enumerate a fork or an export under the mutant until a law breaks."""
    tally = Tally()
    try:
        mutant.run(tally)
    except LawBroken as broken:
        return Killed(mutant.name, broken.law, sum(tally.states.values()), str(broken))
    return Killed(mutant.name, None, sum(tally.states.values()), "")


def _run_failing_fsyncs(script: Script) -> None:
    """One failing call at a time; only failing fsyncs matter to a mutant that retries them."""
    loop = FaultLoop(script)
    for fault in faults_of(script):
        if fault.kind is FaultKind.EIO and not fault.persistent:
            loop.run(Fault(fault.at, fault.kind))


# ---------------------------------------------------------------------------- report


def report() -> str:
    """Run everything; the page ``docs/crash-enumeration.md``."""
    began = time.process_time()
    lines = [
        "# Crash-point enumeration",
        "",
        "Written by `python -m outlast.testing.crashes --write docs/crash-enumeration.md`.",
        "Every line is a run of the real durable layer on a disk that can crash. The laws A1-A6",
        "are in [laws.md](laws.md), the models in `outlast.testing.crash_image`.",
        "",
        "## Crash states",
        "",
        "| life | result |",
        "|---|---|",
    ]
    for name, tally in (
        (
            "start, two snapshots, one trainer checkpoint",
            enumerate_script(short_script, models="KOP"),
        ),
        ("every kind of retention", enumerate_script(long_script, models="KO")),
        ("crash again during recovery", enumerate_recovery(models="KO", every=24)),
    ):
        lines.append(f"| {name} | {tally.line()}; 0 violations |")
    for making in all_makings():
        tally = enumerate_making(making, models="KO" if making.name.startswith("fork") else "KOP")
        lines.append(f"| {making.name} | {tally.line()}; 0 violations |")
    lines += ["", "## Two at once", "", *_rivals()]
    faults = run_faults(short_script)
    failed = sum(fail_making(making, stride=9) for making in all_makings())
    lines += ["", "## I/O errors", "", f"{faults.line()}; 0 violations.", ""]
    lines += [f"Forks and exports: {failed:,} faults; 0 violations.", ""]
    lines += [
        "## Mutants",
        "",
        "| mutant | killed by | after states | how it shows |",
        "|---|---|---|---|",
    ]
    killings = [run_mutant(mutant) for mutant in (*MUTANTS, *PREFIX_MUTANTS)]
    killings += [run_making_mutant(mutant) for mutant in MAKING_MUTANTS]
    for killed in killings:
        shown = killed.message.replace("|", "/").replace("\n", " ")[:110]
        lines.append(
            f"| {killed.name} | {killed.law or '**survived**'} | {killed.states:,} | {shown} |"
        )
    for mutant in EQUIVALENT:
        killed = run_mutant(mutant)
        verdict = killed.law or "nothing: equivalent, see decision 003"
        lines.append(f"| {killed.name} | {verdict} | {killed.states:,} | |")
    lines += ["", f"{time.process_time() - began:.0f} CPU seconds.", ""]
    return "\n".join(lines)


def _rivals() -> list[str]:
    """A second controller, and a second builder, before every call of the first."""
    lines = [f"- {enumerate_takeovers(short_script).line()}; 0 violations"]
    for making in all_makings():
        won = make_twice(making, stride=5)
        lines.append(
            f"- {making.name}, begun again before every fifth of its calls: the first one succeeds "
            f"{won['first']:,} times, the second {won['second']:,}; never both, never none"
        )
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit status 1 when a mutant survives, a traceback when a law breaks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="also write the page to this file")
    options = parser.parse_args(arguments)
    page = report()
    sys.stdout.write(page)
    if options.write is not None:
        options.write.write_text(page, encoding="utf-8")
    return 1 if "**survived**" in page else 0


if __name__ == "__main__":
    sys.exit(main())
