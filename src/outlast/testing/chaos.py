"""Chaos: kill the real program, restart it, and judge every life from outside (laws, harness c).

    python -m outlast.testing.chaos [--kills 100] [--power-cuts 20] [--recipe R] [--set a.b=c] ...

Lineages follow each other until enough lives were ended; each is driven to its end and audited.
Exit code 0: no violation; 1: a violation, or fewer kills than asked for; 69: something hung; 74: a
volume failed.
`outlast crashtest` is the same for a user's own recipe. May import: everything below.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from outlast.testing import power
from outlast.testing.chaos_blows import ORDINARY, Kind
from outlast.testing.chaos_lineage import Lineage
from outlast.testing.chaos_lives import Hung, Pace
from outlast.testing.chaos_report import print_report, report_json
from outlast.testing.chaos_verdict import Campaign, Verdict
from outlast.testing.power import NoPower, Volume

Say = Callable[[str], None]
EVERYTHING = (*ORDINARY, Kind.VOLUME_FULL)
"""Kills of a long campaign; its power cuts are counted apart."""


def quiet(_: str) -> None:
    """For a campaign that reports at its end only."""


def to_stderr(line: str) -> None:
    """One line per life, at once."""
    print(line, file=sys.stderr, flush=True)


def run_campaign(campaign: Campaign, directory: Path, *, say: Say = quiet) -> Verdict:
    """Carry out `campaign`; tapes, logs and runs (or their images) stand in ``lineage_N`` below.

    Raises Hung when a life neither works nor dies, RecipeError for a recipe that cannot run,
    NoPower when a volume fails that could be made before.
    """
    began = time.monotonic()
    verdict = _possible(campaign, say=say)
    campaign = verdict.campaign
    kinds = campaign.file_systems or power.kinds()
    file_systems = kinds if _needs_volume(campaign) else ()
    rng = random.Random(campaign.seed)
    pace = Pace(life_s=campaign.life_s or 4.0, fixed=campaign.life_s is not None)
    for number in range(1, campaign.lineages_max + 1):
        place = directory / f"lineage_{number}"
        place.mkdir(parents=True)
        kind = file_systems[number % len(file_systems)] if file_systems else None
        with _volume(place, kind, campaign=campaign) as volume:
            lineage = Lineage(
                verdict, place, number=number, rng=rng, pace=pace, volume=volume, say=say
            )
            lineage.run(deadline=began + campaign.timeout_s)
        if verdict.complete or verdict.broken:
            break
    verdict.seconds = time.monotonic() - began
    return verdict


def _needs_volume(campaign: Campaign) -> bool:
    return campaign.power_cuts > 0 or Kind.VOLUME_FULL in campaign.kinds


def _possible(campaign: Campaign, *, say: Say) -> Verdict:
    """A new verdict on what can be done here of the campaign; the rest is named, loudly."""
    reason = power.why_not() if _needs_volume(campaign) else None
    if reason is None:
        return Verdict(campaign=campaign)
    left = [f"full file systems NOT TESTED: {reason}"] * (Kind.VOLUME_FULL in campaign.kinds)
    left += [f"power cuts NOT TESTED: {reason}"] * (campaign.power_cuts > 0)
    for line in left:
        say(line)
    kinds = tuple(kind for kind in campaign.kinds if kind is not Kind.VOLUME_FULL)
    return Verdict(campaign=replace(campaign, power_cuts=0, kinds=kinds), untested=left)


@contextlib.contextmanager
def _volume(place: Path, kind: str | None, *, campaign: Campaign) -> Iterator[Volume | None]:
    if kind is None:
        yield None
        return
    with Volume(place, kind=kind, size_bytes=campaign.volume_bytes) as volume:
        yield volume


def carry_out(campaign: Campaign, directory: Path | None, *, say: Say) -> Verdict:
    """As a command does it: below `directory`, else a temporary one; leaves no child, no mount.

    Raises what `run_campaign` raises.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if _needs_volume(campaign):
            power.private_mounts()
        if directory is not None:
            return run_campaign(campaign, directory.absolute(), say=say)
        with tempfile.TemporaryDirectory(prefix="outlast-chaos-") as temporary:
            return run_campaign(campaign, Path(temporary), say=say)
    finally:
        signal.signal(signal.SIGTERM, before)


# ---------------------------------------------------------------------------------- command


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    options = _parser().parse_args(arguments)
    campaign = Campaign(
        kills=options.kills,
        power_cuts=options.power_cuts,
        seed=options.seed,
        recipe=options.recipe,
        overrides=tuple(options.overrides),
        kinds=tuple(Kind(name) for name in options.kinds.split(",")),
        volume_bytes=options.volume_mib << 20,
        file_systems=tuple(options.file_systems.split(",")) if options.file_systems else (),
        lineages_max=options.lineages,
        life_s=options.life_s,
        timeout_s=options.timeout_s,
    )
    try:
        verdict = carry_out(campaign, options.directory, say=quiet if options.json else to_stderr)
    except (Hung, NoPower) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(report_json(verdict))
    else:
        print_report(verdict)
    return 0 if verdict.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing.chaos", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kills", type=int, default=100, help="lives to end before their time")
    parser.add_argument("--power-cuts", type=int, default=20, help="and by power cuts (needs root)")
    parser.add_argument("--seed", type=int, default=0, help="draws the blows")
    parser.add_argument("--recipe", help="recipe file; none: the built-in demo, made small")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="a.b=v")
    parser.add_argument("--kinds", default=",".join(EVERYTHING), help="kills to draw from")
    parser.add_argument("--volume-mib", type=int, default=512, help="size of a run's file system")
    parser.add_argument("--file-systems", help="ext4, xfs or both; none: what can be made here")
    parser.add_argument("--lineages", type=int, default=1_000, help="at most so many runs")
    parser.add_argument("--life-s", type=float, help="typical seconds until a blow; else learnt")
    parser.add_argument("--timeout-s", type=float, default=7200.0, help="bound of the campaign")
    parser.add_argument("--directory", type=Path, help="keep runs, tapes and logs below this one")
    parser.add_argument("--json", action="store_true", help="the report as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
