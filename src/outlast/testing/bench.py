"""Benchmarks of what must be fast (DESIGN 16): ratios, measured side by side in one run.

    python -m outlast.testing.bench [--out FILE] [--directory DIR] [--groups N] [--rows-mib M]

A benchmark, not a test: bars are shown beside the figures and never change the exit code.
May import: everything below the command line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outlast.testing.bench_measures import (
    Figures,
    Say,
    Sizes,
    measure_append,
    measure_cut,
    measure_torch,
)

Row = tuple[str, str, str, bool | None]
"""(what, figure, bar, whether the bar is met; None without a bar)."""


def run_bench(sizes: Sizes, directory: Path, *, say: Say) -> dict[str, object]:
    """All figures as one JSON-ready document."""
    cut = asyncio.run(measure_cut(directory / "cut", sizes, say=say))
    append = asyncio.run(measure_append(directory / "append", sizes, say=say))
    against_torch = asyncio.run(measure_torch(directory / "torch", sizes, say=say))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {sys.version.split()[0]}",
        "cut": cut,
        "append": append,
        "torch_save": against_torch,
    }


def table_rows(cut: Figures, append: Figures, *, torch: dict[str, Figures]) -> list[Row]:
    """The figures beside the bars of DESIGN 16."""
    p99, share = cut["hold_p99_ms"], cut["second_share"]
    rows_per_s, of_disk = append["rows_per_s"], append["share_of_disk"]
    rows: list[Row] = [
        (
            f"cut hold, {cut['groups']:,.0f} groups, {cut['rows']:,.0f} rows, "
            f"{cut['cuts']:.0f} cuts",
            f"p50 {cut['hold_p50_ms']:.2f} ms, p99 {p99:.2f} ms "
            f"(of CPU {cut['hold_cpu_p50_ms']:.2f} and {cut['hold_cpu_p99_ms']:.2f} ms), "
            f"max {cut['hold_max_ms']:.2f} ms",
            "p99 <= 5 ms",
            p99 <= 5,
        ),
        (
            "first snapshot: save + encode and publish",
            f"{cut['first_save_s']:.2f} s + {cut['first_commit_s']:.2f} s, "
            f"{cut['first_bytes'] / 1e6:,.0f} MB",
            "-",
            None,
        ),
        (
            f"snapshot 1 s later, {cut['second_new_rows']:,.0f} new rows",
            f"{cut['second_save_s']:.2f} s + {cut['second_commit_s']:.2f} s, "
            f"{cut['second_bytes_new'] / 1e6:,.1f} MB new",
            "-",
            None,
        ),
        ("its new bytes, relative to a full image", f"1/{1 / share:.1f}", "<= 1/6", share <= 1 / 6),
        (
            f"durable append, 64-row batches of {append['row_bytes'] / 1e3:.0f} kB rows",
            f"{rows_per_s:,.0f} rows/s, {append['append_mb_per_s']:,.0f} MB/s, "
            f"{of_disk:.2f} of the disk's {append['disk_mb_per_s']:,.0f} MB/s",
            ">= 45,000 rows/s or 0.5",
            rows_per_s >= 45_000 or of_disk >= 0.5,
        ),
        (
            "verified load, page cache warm",
            f"{append['load_mb_per_s']:,.0f} MB/s, "
            f"{append['load_mb_per_cpu_s']:,.0f} MB per second of CPU",
            ">= 500 MB/s",
            append["load_mb_per_s"] >= 500,
        ),
    ]
    for count, figures in torch.items():
        rows.append(
            (
                f"64 new rows beside {int(count):,}: snapshot against torch.save of all",
                f"{1e3 * figures['snapshot_s']:.1f} ms against "
                f"{1e3 * figures['torch_save_s']:.1f} ms: 1/{1 / figures['ratio']:.1f}",
                "-",
                None,
            )
        )
    return rows


def print_table(rows: Sequence[Row], *, title: str, console: Console | None = None) -> None:
    """One table for people."""
    table = Table(title=title, title_justify="left")
    for name in ("what", "measured", "bar", ""):
        table.add_column(name)
    for what, measured, bar, met in rows:
        verdict = {True: "[green]met[/green]", False: "[red]missed[/red]", None: ""}[met]
        table.add_row(what, measured, bar, verdict)
    (console or Console()).print(table)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--out", type=Path, help="write the figures to this file as JSON")
    parser.add_argument("--directory", type=Path, help="the disk to measure; else a temporary one")
    parser.add_argument("--groups", type=int, default=Sizes().groups)
    parser.add_argument("--rows-mib", type=int, default=Sizes().rows_bytes >> 20)
    parser.add_argument("--append-mib", type=int, default=Sizes().append_bytes >> 20)
    options = parser.parse_args(arguments)
    sizes = Sizes(
        groups=options.groups,
        rows_bytes=options.rows_mib << 20,
        append_bytes=options.append_mib << 20,
    )
    with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=options.directory) as directory:
        found = run_bench(sizes, Path(directory), say=_to_stderr)
    report(found)
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def report(found: dict[str, object], console: Console | None = None) -> None:
    """Print the table of a finished bench."""
    cut, append, torch = found["cut"], found["append"], found["torch_save"]
    assert isinstance(cut, dict) and isinstance(append, dict) and isinstance(torch, dict)
    print_table(table_rows(cut, append, torch=torch), title=str(found["machine"]), console=console)


if __name__ == "__main__":
    sys.exit(main())
