"""Run one lineage by its plan and judge it: every life, the calm end, the audit, the twin (S11).

May import: `testing`.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from outlast.errors import InvariantError
from outlast.testing.endings import Ended
from outlast.testing.fake_environment import FakeEnvironment, FakePrompts
from outlast.testing.law_terms import LawBroken
from outlast.testing.loop import Deadlock, Livelock
from outlast.testing.plan import DiskFault, LifePlan, LineagePlan
from outlast.testing.scripts import EngineProfile, TrainerProfile
from outlast.testing.simulation import Simulation
from outlast.testing.world import StoreSpeed

CALM_LIMIT_S = 3000.0
"""Virtual seconds in which a run must finish once faults have stopped (L1)."""
CALM_LIVES_MAX = 3
ORDERLY = frozenset({"finished", "nothing_to_do", "preempted", "killed"})


@dataclass(slots=True)
class LineageResult:
    """What a lineage came to."""

    plan: LineagePlan
    violation: str | None = None
    trace: str = ""
    ends: list[Ended] = field(default_factory=list)
    virtual_s: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    marks: dict[str, int] = field(default_factory=dict)
    checks: int = 0
    lag_max: int = 0
    gave_up: bool = False
    """A run budget was spent: an orderly refusal, not a violation."""

    @property
    def crashes(self) -> int:
        """Lives that did not end in good order."""
        return sum(end.how not in ("finished", "nothing_to_do", "preempted") for end in self.ends)


def run_lineage(plan: LineagePlan) -> LineageResult:
    """Play the plan. Violations are returned; any other exception is a bug of the simulator."""
    result = LineageResult(plan)
    sim = _simulation(plan)
    collecting = gc.isenabled()
    gc.disable()  # a collection runs finalizers at a moment that no seed decides
    try:
        _play(sim, plan, result=result)
    except (LawBroken, Deadlock, Livelock) as broken:
        name = type(broken).__name__
        result.violation = str(broken) if name == "LawBroken" else f"L4: {name}: {broken}"
    finally:
        _collect(sim, result)
        sim.close()
        if collecting:
            gc.enable()
    return result


def _simulation(plan: LineagePlan) -> Simulation:
    return Simulation(
        plan.shape,
        seed=plan.seed,
        engine=plan.engine,
        store=StoreSpeed(typical_s=plan.store.typical_s, slow_share=plan.store.slow_share),
        trainer=TrainerProfile(stage_s=plan.stage_s, faults=dict(plan.trainer_faults)),
        environment=FakeEnvironment(poison=frozenset(plan.poison)),
        prompt_source=FakePrompts(plan.shape.prompts, unreadable=frozenset(plan.unreadable)),
    )


def _collect(sim: Simulation, result: LineageResult) -> None:
    tally = sim.auditor.tally
    result.trace, result.virtual_s = sim.trace, sim.now
    result.ends = list(sim.ended)
    result.outcomes, result.marks = dict(tally.outcomes), dict(sim.marks.hits)
    result.checks, result.lag_max = tally.checks, tally.lag_max


def _play(sim: Simulation, plan: LineagePlan, *, result: LineageResult) -> None:
    for number, life in enumerate(plan.lives):
        if number:
            sim.resume(**_changes(sim, life))
        _disturb(sim, life)
        end = sim.ended[-1]
        if _spent(end):
            result.gave_up = True
            return
        _judge_disturbed(end, plan)
        if end.how in ("finished", "nothing_to_do"):
            break
    _calm(sim)
    modes = {"restore_mode": "latest"}
    for _ in range(CALM_LIVES_MAX):
        if not sim.running:
            sim.resume(**modes)
        end = sim.run(limit_s=CALM_LIMIT_S)
        if _spent(end):
            result.gave_up = True
            return
        if end.how in ("finished", "nothing_to_do"):
            break
        raise LawBroken(f"L1: without faults the life ended with {end}")
    _judge_finished(sim, plan)


def _changes(sim: Simulation, life: LifePlan) -> dict[str, object]:
    """Settings that differ from the last life's. Without a checkpoint there is no such mode."""
    checkpoints = any(n.startswith("step_") for n in sim.auditor.acknowledged.values())
    mode = life.restore_mode if checkpoints else "latest"
    changes: dict[str, object] = {"restore_mode": mode}
    if life.capacity is not None:
        changes["capacity"] = life.capacity
    return changes


# ----------------------------------------------------------------------------- one life


def _disturb(sim: Simulation, life: LifePlan) -> None:
    """Drive one life through its disk faults to its planned end, unless it ends by itself."""
    sim.power_cuts = life.power_cut
    if life.ending == "disk":
        sim.kill_at(disk_change=life.count)
    elif life.ending == "mark":
        sim.kill_at(mark=(life.mark, life.count))
    timed = life.ending in ("time", "sigterm", "sigterm_kill")
    actions: list[tuple[float, str, DiskFault | None]] = []
    for fault in life.disk_faults:
        actions.append((fault.after_s, "fail", fault))
        if fault.lasts_s:
            actions.append((fault.after_s + fault.lasts_s, "repair", None))
    if timed:
        actions.append((life.after_s, life.ending, None))
    begun = sim.now
    for at, what, failing in sorted(actions, key=lambda action: action[:2]):
        if not sim.run_until(seconds=max(0.0, begun + at - sim.now)):
            return
        if failing is not None:
            sim.fail_disk(failing.kind, once=not failing.lasts_s, skip=failing.skip)
        elif what == "repair":
            sim.fail_disk(None)
        else:
            _end(sim, what)
            return
    if not sim.run_until(seconds=300.0):
        return
    sim.kill(power_cut=life.power_cut)  # the planned mark or change never came


def _end(sim: Simulation, what: str) -> None:
    if what == "time":
        sim.kill(power_cut=sim.power_cuts)
        return
    sim.sigterm()
    if what == "sigterm_kill" and sim.run_until(seconds=0.4):
        sim.kill(power_cut=sim.power_cuts)
    elif what == "sigterm":
        sim.run()


def _spent(end: Ended) -> bool:
    """A run budget is used up: the run refuses to go on, as the design says."""
    return end.how == "StallAbort" and "no group committed" not in end.message


def _judge_disturbed(end: Ended, plan: LineagePlan) -> None:
    """Which ends the plan's faults explain."""
    if end.how in ORDERLY:
        return
    hung = "hangs" in plan.trainer_faults.values()
    broken = bool(plan.trainer_faults) and "TrainerBroke" in end.message
    failing = any(life.disk_faults for life in plan.lives)
    if end.how in ("DiskError", "DiskFull") and failing:
        return
    if end.how == "StallAbort" and hung:
        return
    if broken:
        return
    law = "S6" if issubclass(InvariantError, Exception) and end.exit_code == 70 else "L4"
    raise LawBroken(f"{law}: the life ended with {end}")


def _calm(sim: Simulation) -> None:
    """Faults stop; what they have done stays."""
    profile = sim.engine.profile
    sim.engine.profile = EngineProfile(latency_s=profile.latency_s, survives=profile.survives)
    sim.trainer.faults.clear()
    sim.store.slow_share = 0.0
    sim.power_cuts = False
    sim.fail_disk(None)


# ------------------------------------------------------------------------------ verdicts


def _judge_finished(sim: Simulation, plan: LineagePlan) -> None:
    report = sim.audit()
    if not report.ok:
        raise LawBroken(f"S4: the audit finds {report.violations}")
    shadow, shape = sim.auditor.shadow, plan.shape
    total = shape.prompts * shape.epochs
    if shadow.version < shape.steps and shadow.known < total:
        raise LawBroken(
            f"L1: finished at step {shadow.version} of {shape.steps} with {shadow.known} of "
            f"{total} prompts drawn"
        )
    if sorted(sim.trained) != list(range(1, shadow.version + 1)):
        raise LawBroken(f"S1: steps {sorted(sim.trained)} were trained, version {shadow.version}")
    seen = sim.auditor.at_cut(report.cut)
    if seen is not None:
        counted = (report.trained, report.dropped, report.outstanding)
        own = (len(seen.trained), len(seen.dropped), len(seen.live))
        if counted != own:
            raise LawBroken(
                f"S4: the audit counts {counted} trained, dropped, outstanding at {report.cut}; "
                f"seen were {own}"
            )
    if plan.twin:
        _judge_twin(sim, plan)


def _judge_twin(sim: Simulation, plan: LineagePlan) -> None:
    """S11: the same run without any disturbance ends with the same weights."""
    calm = EngineProfile(latency_s=plan.engine.latency_s)
    twin = Simulation(plan.shape, seed=plan.seed, engine=calm)
    try:
        twin.run(limit_s=CALM_LIMIT_S)
        if twin.weights != sim.weights:
            raise LawBroken(f"S11: weights {sim.weights[:12]}, undisturbed {twin.weights[:12]}")
    finally:
        twin.close()
