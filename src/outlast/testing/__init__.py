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
    from outlast.testing.crash_disk import CrashDisk as CrashDisk
    from outlast.testing.crash_disk import FaultKind as FaultKind
    from outlast.testing.endings import Ended as Ended
    from outlast.testing.endings import SnapshotVerdict as SnapshotVerdict
    from outlast.testing.fake_engine import FakeEngine as FakeEngine
    from outlast.testing.fake_environment import (
        FakeEnvironment as FakeEnvironment,
    )
    from outlast.testing.fake_environment import (
        FakePrompts as FakePrompts,
    )
    from outlast.testing.fake_trainer import FakeTrainer as FakeTrainer
    from outlast.testing.law_terms import LawBroken as LawBroken
    from outlast.testing.loop import (
        Deadlock as Deadlock,
    )
    from outlast.testing.loop import (
        Livelock as Livelock,
    )
    from outlast.testing.loop import (
        SimLoop as SimLoop,
    )
    from outlast.testing.sampler_contract import check_sampler as check_sampler
    from outlast.testing.scripts import (
        Answer as Answer,
    )
    from outlast.testing.scripts import (
        EngineProfile as EngineProfile,
    )
    from outlast.testing.scripts import (
        TrainerFault as TrainerFault,
    )
    from outlast.testing.scripts import (
        TrainerProfile as TrainerProfile,
    )
    from outlast.testing.shape import RunShape as RunShape
    from outlast.testing.simulation import Simulation as Simulation
    from outlast.testing.world import StoreSpeed as StoreSpeed

_HOMES: Final = {
    "endings": ("Ended", "SnapshotVerdict"),
    "crash_disk": ("CrashDisk", "FaultKind"),
    "fake_engine": ("FakeEngine",),
    "fake_environment": ("FakeEnvironment", "FakePrompts"),
    "fake_trainer": ("FakeTrainer",),
    "law_terms": ("LawBroken",),
    "loop": ("Deadlock", "Livelock", "SimLoop"),
    "sampler_contract": ("check_sampler",),
    "scripts": ("Answer", "EngineProfile", "TrainerFault", "TrainerProfile"),
    "shape": ("RunShape",),
    "simulation": ("Simulation",),
    "world": ("StoreSpeed",),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'outlast.testing' has no attribute {name!r}")
    return getattr(import_module(f"outlast.testing.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
