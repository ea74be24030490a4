"""What one simulated lineage goes through, as a value: shape, faults, crashes. Drawn from a seed.

Each seed draws which fault classes exist and how hard they strike, so that rare combinations come
up (swarm testing). A plan is JSON: a failing one is shrunk and kept as a regression.
May import: `testing.shape`, `testing.scripts`, `testing.world`.
"""

from __future__ import annotations

import random
from typing import Final, Literal

import msgspec

from outlast.testing.scripts import EngineProfile, TrainerFault
from outlast.testing.shape import RunShape, SamplerName, sampler_of
from outlast.testing.world import StoreSpeed

SAMPLERS: Final[tuple[SamplerName, ...]] = (
    *("in_order", "weight_fifo", "ready_first", "windowed", "custom"),
)
LEVELS: Final = ("sibling", "prompt_group", "token")
Ending = Literal["time", "disk", "mark", "sigterm", "sigterm_kill"]


class DiskFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The disk fails from `after_s` of the life, once or for `lasts_s`."""

    after_s: float
    kind: Literal["EIO", "ENOSPC", "short write"]
    lasts_s: float = 0.0
    """0: one call only."""
    skip: int = 0
    """Calls that still succeed."""


class LifePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one life is disturbed and ended, if it does not end by itself."""

    ending: Ending
    after_s: float = 0.0
    """For time, sigterm, sigterm_kill: virtual seconds after the start."""
    count: int = 1
    """For disk and mark: which change of the disk, or hit of any mark."""
    mark: str = ""
    """For mark: its name; empty for any."""
    power_cut: bool = False
    disk_faults: tuple[DiskFault, ...] = ()
    capacity: int | None = None
    """Permits from this life on; None keeps them."""
    restore_mode: Literal["latest", "trainer_checkpoint"] = "latest"
    """How this life starts; snapshots that it leaves aside become foreign."""


class LineagePlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lineage: disturbed lives, then a calm one that must finish."""

    seed: int
    shape: RunShape
    engine: EngineProfile = EngineProfile()
    store: StoreSpeed = msgspec.field(default_factory=StoreSpeed)
    trainer_faults: dict[int, TrainerFault] = {}
    stage_s: float = 0.1
    """Longest copy aside of the trainer's state for a checkpoint."""
    poison: tuple[int, ...] = ()
    unreadable: tuple[int, ...] = ()
    lives: tuple[LifePlan, ...] = ()
    twin: bool = False
    """Compare the final weights with those of the undisturbed run (S11)."""


def draw_plan(seed: int) -> LineagePlan:
    """The lineage of `seed`; fifteen in a row cover five samplers at three recovery levels."""
    rng = random.Random(f"swarm/{seed}")
    twin = SAMPLERS[seed % 5] == "in_order" and rng.random() < 0.4
    shape = _shape(rng, seed, twin=twin)
    return LineagePlan(
        seed=seed,
        shape=shape,
        engine=_engine(rng),
        store=_store(rng),
        trainer_faults={} if rng.random() < 0.6 else _trainer(rng, shape),
        stage_s=rng.choice((0.1, 0.1, 1.5)),
        poison=_prompts(rng, shape) if not twin else (),
        unreadable=_prompts(rng, shape) if not twin else (),
        lives=tuple(_life(rng, shape) for _ in range(rng.randint(2, 6))),
        twin=twin,
    )


def _shape(rng: random.Random, seed: int, *, twin: bool) -> RunShape:
    P = rng.choice((1, 2, 2, 3, 4))
    steps = rng.randint(2, 6)
    short = not twin and rng.random() < 0.25
    shape = RunShape(
        prompts=rng.randint(2, 6) if short else rng.randint(3, 20),
        epochs=rng.randint(1, 3) if short else 50,
        siblings=rng.randint(2, 3),
        groups_per_step=P,
        steps=steps,
        sampler=SAMPLERS[seed % 5],
        window=0 if twin else rng.choice((0, 1, 1, 2)),
        over_sampling_ratio=rng.choice((1.0, 1.0, 1.5)),
        freshest_first=rng.random() < 0.3,
        level=LEVELS[(seed // 5) % 3],
        chunk_groups_min=rng.randint(1, P),
        inflight=rng.choice((1, 2, 64, 64)),
        save_period=rng.choice((1, 1, 1, 2, 3)),
        anchor_policy=rng.choice(("exact", "exact", "replay")),
        max_replay_steps=rng.choice((1, 2, 8)),
        interval_s=rng.choice((0.3, 0.8, 0.8, 2.0, None)),
        keep_latest_k=rng.randint(1, 3),
        replace_dropped=rng.random() < 0.5,
        min_step_batch_fraction=rng.choice((0.5, 0.9)),
        filter_zero_variance=rng.random() < 0.3,
        deterministic=twin,
        infrastructure_attempts=99 if twin else 5,
        data_attempts=99 if twin else 2,
        validation_period=rng.choice((-1, -1, 0, 2)),
    )
    if shape.anchor_policy == "replay":
        interval_s = shape.interval_s or 0.5
        shape = msgspec.structs.replace(
            shape, save_period=rng.choice((2, 3, 7)), interval_s=interval_s
        )
    spare = rng.choice((0, 0, 1, 2 * P))
    return msgspec.structs.replace(shape, capacity=sampler_of(shape).capacity_needed + spare)


def _share(rng: random.Random, most: float) -> float:
    """Half of the seeds do without the fault."""
    return 0.0 if rng.random() < 0.5 else rng.random() * most


def _engine(rng: random.Random) -> EngineProfile:
    return EngineProfile(
        latency_s=rng.choice((0.3, 1.0)),
        straggler_share=_share(rng, 0.3),
        failure_share=_share(rng, 0.25),
        hang_share=_share(rng, 0.06),
        late_share=_share(rng, 0.5),
        duplicate_share=_share(rng, 0.5),
        foreign_share=_share(rng, 0.3),
        update_s=rng.choice((0.05, 0.3, 1.5)),
        survives=rng.random() < 0.5,
    )


def _store(rng: random.Random) -> StoreSpeed:
    return StoreSpeed(typical_s=rng.choice((0.002, 0.01, 0.05)), slow_share=_share(rng, 0.1))


def _trainer(rng: random.Random, shape: RunShape) -> dict[int, TrainerFault]:
    kinds = sorted(TrainerFault)
    return {rng.randint(1, shape.steps): rng.choice(kinds) for _ in range(rng.randint(1, 2))}


def _prompts(rng: random.Random, shape: RunShape) -> tuple[int, ...]:
    if rng.random() < 0.85 or shape.prompts < 4 * shape.groups_per_step:
        return ()
    return (rng.randrange(shape.prompts),)


def _life(rng: random.Random, shape: RunShape) -> LifePlan:
    ending: Ending = rng.choices(
        ("time", "disk", "mark", "sigterm", "sigterm_kill"), weights=(30, 40, 15, 10, 5)
    )[0]
    reach = rng.choice((10, 60, 250))
    needed = sampler_of(shape).capacity_needed
    return LifePlan(
        ending=ending,
        after_s=round(rng.random() * rng.choice((0.5, 3.0, 8.0)), 3),
        count=rng.randint(1, reach),
        power_cut=rng.random() < 0.5,
        disk_faults=_disk_faults(rng),
        capacity=needed if rng.random() < 0.25 else None,
        restore_mode="trainer_checkpoint" if rng.random() < 0.1 else "latest",
    )


def _disk_faults(rng: random.Random) -> tuple[DiskFault, ...]:
    if rng.random() < 0.8:
        return ()
    return tuple(
        DiskFault(
            after_s=0.0 if rng.random() < 0.3 else round(rng.random() * 4, 3),
            kind=rng.choice(("EIO", "ENOSPC", "short write")),
            lasts_s=rng.choice((0.0, 0.0, 0.5, 3.0)),
            skip=rng.choice((0, 0, rng.randrange(80))),
        )
        for _ in range(rng.randint(1, 2))
    )
