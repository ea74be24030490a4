"""Benchmarks of what must be fast (DESIGN 16): ratios, measured side by side in one run.

    python -m outlast.testing.bench [--only cut,goodput] [--quick] [--out FILE] [--directory DIR]

Parts: cut, append, torch, transfer_queue, throughput, many, goodput. All of them take about forty
minutes on two idle cores; the last three train for real, `--recipe` and `--set` choose what.
A benchmark, not a test: bars are shown beside the figures and never change the exit code
(69: a training run failed, and what was measured before it is shown).
May import: everything below the command line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from outlast.testing.bench_goodput import LONG, Goodput, measure_goodput
from outlast.testing.bench_many import Many, measure_many
from outlast.testing.bench_measures import (
    Say,
    Sizes,
    measure_append,
    measure_cut,
    measure_torch,
)
from outlast.testing.bench_model import endless_model
from outlast.testing.bench_picture import lines_of, picture
from outlast.testing.bench_runs import Job
from outlast.testing.bench_tables import PARTS, Row, table_rows
from outlast.testing.bench_throughput import Throughput, measure_throughput
from outlast.testing.bench_transfer_queue import measure_transfer_queue
from outlast.testing.chaos_lives import Hung


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure, and how large."""

    only: tuple[str, ...] = tuple(PARTS)
    sizes: Sizes = field(default_factory=Sizes)
    job: Job = field(default_factory=Job)
    throughput: Throughput = field(default_factory=Throughput)
    many: Many = field(default_factory=Many)
    goodput: Goodput = field(default_factory=Goodput)


QUICK = Plan(
    sizes=Sizes(
        groups=64,
        in_flight=32,
        rows_bytes=8 << 20,
        cuts=20,
        append_bytes=4 << 20,
        torch_rows=(64,),
        rounds=1,
    ),
    job=Job(overrides=("generation.max_new_tokens=64",)),
    throughput=Throughput(steps=6, warm_steps=1, rounds=1, intervals=("null", "1")),
    many=Many(snapshots=3, interval_s=0.5, warm_steps=1),
    goodput=Goodput(steps=8, kills=1, mean_life_s=0.8, interval_s=0.5),
)
"""Everything once and small: says that it works, not how fast it is."""


def run_bench(plan: Plan, directory: Path, *, found: dict[str, Any], say: Say) -> None:
    """Put all figures into `found`, a JSON-ready document: `machine`, and a key per part.

    Raises Hung when a training run fails; the parts before it stand in `found`.
    """
    sizes = plan.sizes
    measures: dict[str, Callable[[Path], object]] = {
        "cut": lambda place: asyncio.run(measure_cut(place, sizes, say=say)),
        "append": lambda place: asyncio.run(measure_append(place, sizes, say=say)),
        "torch": lambda place: asyncio.run(measure_torch(place, sizes, say=say)),
        "transfer_queue": lambda place: measure_transfer_queue(
            place, sizes.torch_rows, rounds=sizes.rounds, say=say
        ),
        "throughput": lambda place: measure_throughput(
            place, plan.job, plan=plan.throughput, say=say
        ),
        "many": lambda place: measure_many(place, plan.job, plan=plan.many, say=say),
        "goodput": lambda place: measure_goodput(
            place, _long_job(plan.job, place), plan=plan.goodput, say=say
        ),
    }
    found["machine"] = f"{os.cpu_count()} cores, {platform.machine()}"
    for part, measure in measures.items():
        if part in plan.only:
            place = directory / part
            place.mkdir(parents=True)
            found[part] = measure(place)


def _long_job(job: Job, place: Path) -> Job:
    """The chosen recipe as it is; the built-in demo with long responses."""
    if job.recipe is not None:
        return job
    model = endless_model(place / "model")
    return replace(job, overrides=(f"model.path={model}", *LONG, *job.overrides))


def report(found: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the table of a finished bench."""
    print_table(table_rows(found), title=str(found["machine"]), console=console)


def print_table(rows: Sequence[Row], *, title: str, console: Console | None = None) -> None:
    """One table for people."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "measured", "bar", ""):
        table.add_column(name)
    for what, measured, bar, met in rows:
        verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[met]
        table.add_row(what, measured, bar, verdict)
    (console or Console()).print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    plan = plan_of(options)
    unknown = [part for part in plan.only if part not in PARTS]
    if unknown:
        parser.error(f"--only {','.join(unknown)}: the parts are {', '.join(PARTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no child is left behind
    with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=options.directory) as directory:
        found, code = dict[str, Any](), 0
        try:
            run_bench(plan, Path(directory), found=found, say=_to_stderr)
        except Hung as error:
            print(f"bench: {error}", file=sys.stderr)
            code = Hung.exit_code
    report(found)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    if options.picture is not None and "goodput" in found:
        options.picture.write_text(goodput_picture(found["goodput"], plan.goodput))
    return code


def goodput_picture(found: Mapping[str, Any], plan: Goodput) -> str:
    """SVG of the goodput part."""
    title = f"{plan.steps} steps, killed {plan.kills} times, about every {plan.mean_life_s:g} s"
    return picture(lines_of(found), title=title)


def plan_of(options: argparse.Namespace) -> Plan:
    """The options over the full plan, or over the quick one. Zero stands for the plan's own."""
    base = QUICK if options.quick else Plan()
    sizes, goodput = base.sizes, base.goodput
    return replace(
        base,
        only=tuple(options.only.split(",")) if options.only else base.only,
        job=Job(recipe=options.recipe, overrides=(*base.job.overrides, *options.overrides)),
        sizes=replace(
            sizes,
            groups=options.groups or sizes.groups,
            rows_bytes=options.rows_mib << 20 or sizes.rows_bytes,
            append_bytes=options.append_mib << 20 or sizes.append_bytes,
        ),
        throughput=replace(
            base.throughput,
            steps=options.steps or base.throughput.steps,
            rounds=options.rounds or base.throughput.rounds,
        ),
        many=replace(base.many, snapshots=options.snapshots or base.many.snapshots),
        goodput=replace(
            goodput,
            steps=options.goodput_steps or goodput.steps,
            kills=goodput.kills if options.kills is None else options.kills,
            mean_life_s=options.life_s or goodput.mean_life_s,
            seed=options.seed,
        ),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--only", metavar="PARTS", help=f"comma-separated; else all: {','.join(PARTS)}")
    add("--quick", action="store_true", help="everything small: says that it works, not how fast")
    add("--out", type=Path, help="write the figures to this file as JSON")
    add("--picture", type=Path, help="draw the goodput part to this SVG file")
    add("--directory", type=Path, help="the disk to measure; else a temporary one")
    add("--groups", type=int, default=0, help="buffered groups of `cut`")
    add("--rows-mib", type=int, default=0, help="row bytes of `cut`")
    add("--append-mib", type=int, default=0, help="row bytes of `append`")
    add("--recipe", help="recipe that the last three parts train; else the built-in demo")
    add("--set", dest="overrides", action="append", default=[], metavar="a.b=v")
    add("--steps", type=int, default=0, help="steps of each run of `throughput`")
    add("--rounds", type=int, default=0, help="rounds of `throughput`")
    add("--snapshots", type=int, default=0, help="snapshots of `many`")
    add("--goodput-steps", type=int, default=0, help="target of `goodput`")
    add("--kills", type=int, help="kills of `goodput`")
    add("--life-s", type=float, default=0.0, help="mean seconds from first dispatch to a kill")
    add("--seed", type=int, default=0, help="draws the schedule of kills")
    return parser


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
