"""Kills the parts of a run on Ray one by one: each role fails alone (`make chaos` runs it).

    python -m outlast.testing.role_kills [--kills N] [--seed S] [RECIPE] [--set a.b=v]...

After every kill -9 of an engine, a storage unit, TransferQueue's controller or a trainer rank, the
run has to go on (a response sealed and a step finished afterwards) or to end by itself with a
cause; a run that does neither within the patience hangs, and that is a violation. The run is then
finished and audited.
May import: the chaos child, `telemetry`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from outlast.telemetry import events
from outlast.testing.chaos_child import PROGRAM, Child
from outlast.testing.ray_processes import Role, roles_below

CLUSTER = (
    "generation.placement=ray",
    "generation.num_engines=2",
    "data_plane.impl=transfer_queue",
    "training.backend=fsdp2",
    "training.world_size=2",
    "validation.enabled=false",
    "rollout_checkpointing.snapshot_attempt_interval_s=1",
    "checkpointing.save_period=2",
)
START_MAX_S = 240.0
END_MAX_S = 120.0
SETTLED = ("finished", "preempted")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCampaign:
    """What to do. Times in seconds."""

    kills: int
    seed: int = 0
    recipe: str | None = None
    overrides: tuple[str, ...] = CLUSTER
    roles: tuple[Role, ...] = tuple(Role)
    patience_s: float = 150.0
    """How long a run may neither go on nor end."""
    pause_s: tuple[float, float] = (0.5, 4.0)
    """From the last sign of progress to the next kill, drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDeath:
    """One kill and what came of it."""

    role: Role
    code: int | None
    """Exit code of a run that ended by it; None: it went on."""
    seconds: float
    """Until the next sealed response and finished step, or until the end."""
    cause: str


@dataclass(slots=True)
class RoleVerdict:
    """What a campaign found."""

    deaths: list[RoleDeath] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    lives: int = 0
    audit: dict[str, object] = field(default_factory=dict)


def run_role_kills(campaign: RoleCampaign, directory: Path) -> RoleVerdict:
    """Carry the campaign out on one run below `directory`."""
    verdict, rng = RoleVerdict(), random.Random(campaign.seed)
    while len(verdict.deaths) < campaign.kills and not verdict.violations:
        verdict.lives += 1
        with _life(campaign, directory, number=verdict.lives, steps=1_000_000) as child:
            _strike_on(child, campaign, verdict=verdict, rng=rng)
    if not verdict.violations:
        _finish(campaign, directory, verdict=verdict)
    return verdict


def _life(campaign: RoleCampaign, directory: Path, *, number: int, steps: int) -> Child:
    chosen = (*campaign.overrides, f"algorithm.max_num_steps={steps}")
    options = [part for override in chosen for part in ("--set", override)]
    recipe = [campaign.recipe] if campaign.recipe else []
    return Child(
        [*recipe, *options, "--run-dir", str(directory / "run")],
        tape=directory / f"life_{number}.tape",
        log=directory / f"life_{number}.log",
        environment={"OMP_NUM_THREADS": "1"},
    )


def _strike_on(
    child: Child, campaign: RoleCampaign, *, verdict: RoleVerdict, rng: random.Random
) -> None:
    """Kill roles of this life until it ends or enough are dead; then ask it to stop."""
    if not _progress(child, seconds_max=START_MAX_S):
        verdict.violations.append(f"life {verdict.lives} made no progress: {child.last_words()}")
        return
    while len(verdict.deaths) < campaign.kills:
        time.sleep(rng.uniform(*campaign.pause_s))
        living = roles_below(child.pid)
        role = rng.choice([role for role in campaign.roles if living.get(role)] or [None])
        if role is None:
            verdict.violations.append(f"no role of {campaign.roles} lives below {child.pid}")
            return
        child.read()
        began = time.monotonic()
        os.kill(rng.choice(living[role]), signal.SIGKILL)
        went_on = _progress(child, seconds_max=campaign.patience_s)
        seconds = time.monotonic() - began
        if not went_on and child.returncode is None:
            verdict.violations.append(
                f"{role}: neither went on nor ended in {seconds:.0f} s: {child.last_words()}"
            )
            return
        code = child.returncode
        cause = "" if code is None else _cause(child)
        verdict.deaths.append(RoleDeath(role=role, code=code, seconds=seconds, cause=cause))
        if code is not None:
            if code <= 0 or not cause:
                verdict.violations.append(f"{role}: the run ended with {code} and no cause")
            return
    child.signal(signal.SIGTERM)
    if not child.wait(END_MAX_S) or child.returncode != 75:
        verdict.violations.append(f"SIGTERM ended in {child.returncode}: {child.last_words()}")


def _progress(child: Child, *, seconds_max: float) -> bool:
    """Wait for a sealed response and a finished step; False when it ends or takes too long."""
    until, sealed, stepped = time.monotonic() + seconds_max, False, False
    while time.monotonic() < until and child.returncode is None:
        for taped in child.read():
            sealed |= isinstance(taped.event, events.SiblingSealed)
            stepped |= isinstance(taped.event, events.StepFinished)
        if sealed and stepped:
            return True
        time.sleep(0.05)
    return False


def _cause(child: Child) -> str:
    """The last line of output that says anything."""
    lines = [line.strip() for line in child.last_words().splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _finish(campaign: RoleCampaign, directory: Path, *, verdict: RoleVerdict) -> None:
    """Two more steps to a good end, then the audit."""
    run = str(directory / "run")
    status = _asked("status", run)
    target = int(str(status["trainer_version"])) + 2
    verdict.lives += 1
    with _life(campaign, directory, number=verdict.lives, steps=target) as child:
        if not child.wait(START_MAX_S + END_MAX_S) or child.returncode != 0:
            verdict.violations.append(f"the last life: {child.returncode}: {child.last_words()}")
    verdict.audit = _asked("audit", run)
    if not verdict.audit.get("ok"):
        verdict.violations.append(f"audit: {verdict.audit}")


def _asked(command: str, run: str) -> dict[str, object]:
    done = subprocess.run(
        [*PROGRAM, command, run, "--json"], capture_output=True, text=True, check=False, timeout=120
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def table_of(verdict: RoleVerdict) -> Table:
    """One line per role."""
    table = Table("role", "killed", "went on", "ended", "seconds: median", "longest", "exit codes")
    for role in Role:
        deaths = [death for death in verdict.deaths if death.role is role]
        if not deaths:
            continue
        seconds = [death.seconds for death in deaths]
        codes = sorted({death.code for death in deaths if death.code is not None})
        ended = sum(death.code is not None for death in deaths)
        table.add_row(
            role.value,
            str(len(deaths)),
            str(len(deaths) - ended),
            str(ended),
            f"{statistics.median(seconds):.1f}",
            f"{max(seconds):.1f}",
            ", ".join(map(str, codes)) or "-",
        )
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when no law broke, else 70."""
    parser = argparse.ArgumentParser(prog="outlast.testing.role_kills", description=__doc__)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=v")
    asked = parser.parse_args(arguments)
    campaign = RoleCampaign(
        kills=asked.kills,
        seed=asked.seed,
        recipe=asked.recipe,
        overrides=(*CLUSTER, *asked.overrides),
    )
    with tempfile.TemporaryDirectory(prefix="outlast-roles-") as directory:
        verdict = run_role_kills(campaign, Path(directory))
    console = Console()
    console.print(table_of(verdict))
    for death in verdict.deaths:
        if death.code is not None:
            console.print(f"{death.role.value}: {death.code}: {death.cause}", highlight=False)
    counts = ("ok", "drawn", "trained", "dropped", "outstanding", "skipped", "repeated")
    judged = ", ".join(f"{name} {verdict.audit[name]}" for name in counts if name in verdict.audit)
    console.print(f"{verdict.lives} lives; audit: {judged or 'not reached'}", highlight=False)
    for violation in verdict.violations:
        console.print(f"VIOLATION {violation}", highlight=False, markup=False)
    return 70 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
