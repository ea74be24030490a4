"""Crash-test your own sampler or environment in ten lines, in virtual time, without a GPU.

    >>> from outlast.testing import Answer, Simulation
    >>> sim = Simulation(prompts=12, siblings=2, groups_per_step=2, steps=4, sampler="windowed")
    >>> sim.engine.script(Answer(hangs=True), group=1, sibling=0, attempt=0)
    >>> sim.run_until(step=2)
    True
    >>> sim.kill(power_cut=True)
    >>> sim.resume()
    >>> sim.run().how
    'finished'
    >>> sorted(sim.trained), sim.audit().ok
    ([1, 2, 3, 4], True)

`sampler=lambda P: MySampler(P)` and `environment=MyEnvironment()` put your own code in. Every law
that can be judged from outside is checked after every callback; a broken one raises `LawBroken`.
See ``docs/simulation.md``. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from outlast.testing.crash_disk import CrashDisk as CrashDisk, FaultKind as FaultKind
    from outlast.testing.fake_engine import FakeEngine as FakeEngine
    from outlast.testing.fake_environment import (
        FakeEnvironment as FakeEnvironment,
        FakePrompts as FakePrompts,
    )
    from outlast.testing.fake_trainer import FakeTrainer as FakeTrainer
    from outlast.testing.laws import LawBroken as LawBroken
    from outlast.testing.loop import (
        Deadlock as Deadlock,
        Livelock as Livelock,
        SimLoop as SimLoop,
    )
    from outlast.testing.sampler_contract import check_sampler as check_sampler
    from outlast.testing.scripts import (
        Answer as Answer,
        EngineProfile as EngineProfile,
        TrainerFault as TrainerFault,
        TrainerProfile as TrainerProfile,
    )
    from outlast.testing.shape import RunShape as RunShape
    from outlast.testing.simulation import (
        Ended as Ended,
        Simulation as Simulation,
        SnapshotVerdict as SnapshotVerdict,
    )
    from outlast.testing.world import StoreSpeed as StoreSpeed

_HOMES: Final = {
    "crash_disk": ("CrashDisk", "FaultKind"),
    "fake_engine": ("FakeEngine",),
    "fake_environment": ("FakeEnvironment", "FakePrompts"),
    "fake_trainer": ("FakeTrainer",),
    "laws": ("LawBroken",),
    "loop": ("Deadlock", "Livelock", "SimLoop"),
    "sampler_contract": ("check_sampler",),
    "scripts": ("Answer", "EngineProfile", "TrainerFault", "TrainerProfile"),
    "shape": ("RunShape",),
    "simulation": ("Ended", "Simulation", "SnapshotVerdict"),
    "world": ("StoreSpeed",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'outlast.testing' has no attribute {name!r}")
    return getattr(import_module(f"outlast.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
