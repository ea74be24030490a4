"""`outlast crashtest` and `outlast simulate`: two of the harnesses, for a user's own recipe.

Registered by ``outlast.__main__``. May import: `testing`, when it runs, `cli.exits`, typer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outlast.cli.exits import Exit
from outlast.cli.recipes import Overrides
from outlast.errors import StallAbort

if TYPE_CHECKING:
    from outlast.testing.chaos_blows import Kind


def crashtest(
    *,
    recipe: Annotated[
        str | None, typer.Argument(help="Recipe file; none: the built-in demo.", show_default=False)
    ] = None,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option(min=0, help="Lives to end before their time.")] = 10,
    power_cuts: Annotated[
        int, typer.Option(min=0, help="And so many by a power cut, on a disk image; needs root.")
    ] = 0,
    kinds: Annotated[
        str | None, typer.Option(help="Kills to draw from, comma-separated; else all.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws the kills.")] = 0,
    life_s: Annotated[
        float | None, typer.Option(help="Typical seconds until a kill; else learnt from steps.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Bound of it all.")] = 7200.0,
    volume_mib: Annotated[int, typer.Option(help="Size of the disk image.")] = 2048,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Let the last run reach its target.")
    ] = False,
    directory: Annotated[
        Path | None, typer.Option(help="Keep runs, tapes and logs below this new directory.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Kill real runs of a recipe again and again, and prove that nothing saved was lost."""
    from outlast.testing.chaos import carry_out, quiet, to_stderr
    from outlast.testing.chaos_report import print_report, report_json
    from outlast.testing.chaos_verdict import Campaign

    campaign = Campaign(
        kills=kills,
        power_cuts=power_cuts,
        seed=seed,
        recipe=recipe,
        overrides=tuple(overrides or ()),
        kinds=_kinds(kinds, on_volume=power_cuts > 0),
        volume_bytes=volume_mib << 20,
        life_s=life_s,
        timeout_s=timeout_s,
        to_the_end=to_the_end,
    )
    verdict = carry_out(campaign, directory, say=quiet if as_json else to_stderr)
    if as_json:
        typer.echo(report_json(verdict))
    else:
        print_report(verdict)
    if verdict.violations:
        raise typer.Exit(Exit.INVARIANT)
    if not verdict.complete:
        raise StallAbort("the recipe ended too soon and too often for so many kills")


def _kinds(text: str | None, *, on_volume: bool) -> tuple[Kind, ...]:
    """The kinds named, or all that are possible. Raises BadParameter naming an unknown one."""
    from outlast.testing.chaos import EVERYTHING
    from outlast.testing.chaos_blows import ORDINARY, Kind

    if text is None:
        return EVERYTHING if on_volume else ORDINARY
    unknown = [name for name in text.split(",") if name not in EVERYTHING]
    if unknown:
        known = ", ".join(EVERYTHING)
        raise typer.BadParameter(f"--kinds: there is no {', '.join(unknown)}; known are {known}")
    return tuple(Kind(name) for name in text.split(","))


def simulate(
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Lineages to run.")] = 100,
    start: Annotated[int, typer.Option(help="First seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Run the whole controller in simulated time under drawn faults and crashes (no model)."""
    from outlast.cli.output import print_json
    from outlast.testing.swarm import run_swarm

    report = run_swarm(start=start, seeds=seeds, jobs=jobs)
    if as_json:
        print_json(report.document())
    else:
        typer.echo(report.text())
        for violation in report.violations:
            typer.echo(f"see it again: python -m outlast.testing.simulate --trace {violation.seed}")
    if report.violations:
        raise typer.Exit(Exit.INVARIANT)
