"""``python -m outlast.testing.simulate``: run a swarm of simulated lineages and report.

Exit code 0 without violations, 1 with some. May import: `testing`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from outlast.testing.lineage import run_lineage
from outlast.testing.plan import draw_plan
from outlast.testing.shrink import shrink
from outlast.testing.swarm import from_json, run_swarm, to_json


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="outlast simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=600, help="lineages to run")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--trace", type=int, metavar="SEED", help="print the trace digest of a seed"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run a kept plan")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="print a smaller failing plan")
    chosen = parser.parse_args(arguments)
    if chosen.trace is not None:
        result = run_lineage(draw_plan(chosen.trace))
        print(result.trace, result.violation or "")
        return int(result.violation is not None)
    if chosen.replay is not None:
        result = run_lineage(from_json(chosen.replay.read_bytes()))
        print(result.violation or "no violation")
        return int(result.violation is not None)
    if chosen.shrink is not None:
        print(to_json(shrink(draw_plan(chosen.shrink))).decode())
        return 0
    began = time.monotonic()
    report = run_swarm(start=chosen.start, seeds=chosen.seeds, jobs=chosen.jobs)
    print(report.text())
    print(f"took          {time.monotonic() - began:.0f} s in {chosen.jobs} processes")
    for violation in report.violations:
        print(f"see it again: python -m outlast.testing.simulate --trace {violation.seed}")
    return int(bool(report.violations))


if __name__ == "__main__":
    sys.exit(main())
