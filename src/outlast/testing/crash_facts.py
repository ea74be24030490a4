"""What the scripted lives of the crash harness are made of: world, rows, groups, promises.

May import: `durable`, `config`, `testing.records`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import PurePosixPath

import msgspec
import numpy as np

from outlast.config.load import parse_recipe
from outlast.durable import names
from outlast.durable.fingerprint import Fingerprint, Identities, fingerprint_of
from outlast.durable.segments import Held
from outlast.model.cursor import DatasetOrder
from outlast.model.cut import (
    GENESIS,
    Anchor,
    AnchorKind,
    Cut,
)
from outlast.model.groups import AttemptState, Group, GroupState, PromptRef, RecoveryLevel
from outlast.model.ids import (
    AttemptKey,
    GroupId,
    Incarnation,
    SiblingIndex,
    TrainerVersion,
)
from outlast.rows import Row, row_digest
from outlast.testing.records import make_group
from outlast.world import Identity, Perhaps, World, no_mark

RUN_DIR = PurePosixPath("/runs/demo")
RECIPE = b"seed: 1\n"
SIZE, SEED = 64, 7
_ORDER = DatasetOrder(seed=SEED, size=SIZE)
KEEP_SNAPSHOTS = 2
PREFIX_TOKENS_MAX = 64


class _Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 1_700_000_000.0


class _Inline:
    async def __call__(self, work: Callable[..., object], /, *args: object, **kw: object) -> object:
        return work(*args, **kw)


def make_world(*, pid: int = 1, perhaps: Perhaps = no_mark) -> World:
    """A world without time or threads."""
    return World(
        clock=_Clock(),
        offload=_Inline(),  # type: ignore[arg-type]  # typed by its use, not by ParamSpec
        random=random.Random(pid),
        identity=Identity(host="here", pid=pid),
        perhaps=perhaps,
    )


@cache
def current_fingerprint() -> Fingerprint:
    """What every life of the scenario runs under."""
    identities = Identities(model="m", tokenizer="t", dataset="d", environment="e")
    return fingerprint_of(parse_recipe("", (), source="crash scenario").recipe, identities)


@cache
def row_of(group: int, incarnation: int) -> Held:
    rng = np.random.default_rng(group)
    length = 2 + group % 3
    key = AttemptKey(GroupId(group), SiblingIndex(0), Incarnation(incarnation), 0)
    row = Row(
        key=key,
        prompt_ids=rng.integers(0, 50, 2).astype(np.int32),
        response_ids=rng.integers(0, 50, length).astype(np.int32),
        logprobs=rng.random(length).astype(np.float32),
        weight_versions=np.zeros(length, np.int32),
        loss_mask=np.ones(length, np.bool_),
        reward=1.0,
        mask_sample=False,
    )
    return Held(row, row_digest(row))


@cache
def group_of(group: int, incarnation: int) -> Group:
    epoch, index = _ORDER.at(group)
    made = make_group(group, versions=(0,), prompt=PromptRef(dataset="d", epoch=epoch, index=index))
    held, sibling = row_of(group, incarnation), made.siblings[0]
    assert held.row is not None and sibling.receipt is not None
    receipt = msgspec.structs.replace(sibling.receipt, key=held.row.key, digest=held.digest)
    attempt = msgspec.structs.replace(sibling.attempt, key=held.row.key)
    sealed = msgspec.structs.replace(sibling, attempt=attempt, receipt=receipt)
    return msgspec.structs.replace(made, siblings=(sealed,))


@cache
def prefix_of(group: int, incarnation: int, *, tokens: int) -> Row:
    """The first `tokens` tokens of a response that never ends; no reward yet."""
    whole = np.random.default_rng(1_000 + group)
    ids, logprobs = whole.integers(0, 50, PREFIX_TOKENS_MAX), whole.random(PREFIX_TOKENS_MAX)
    return Row(
        key=AttemptKey(GroupId(group), SiblingIndex(0), Incarnation(incarnation), 0),
        prompt_ids=np.arange(2, dtype=np.int32),
        response_ids=ids[:tokens].astype(np.int32),
        logprobs=logprobs[:tokens].astype(np.float32),
        weight_versions=np.zeros(tokens, np.int32),
        loss_mask=np.ones(tokens, np.bool_),
        reward=0.0,
        mask_sample=False,
    )


@cache
def open_group_of(group: int, incarnation: int) -> Group:
    """The same prompt as in `group_of`, its one attempt still decoding under level token."""
    sealed = group_of(group, incarnation)
    sibling = sealed.siblings[0]
    attempt = msgspec.structs.replace(sibling.attempt, state=AttemptState.DISPATCHED)
    growing = msgspec.structs.replace(sibling, attempt=attempt, receipt=None)
    return msgspec.structs.replace(
        sealed,
        state=GroupState.OPEN,
        level=RecoveryLevel.TOKEN,
        siblings=(growing,),
        position=None,
        trained_rewards=(),
        keep=(),
    )


def history_at(version: int, incarnation: int) -> str:
    """Histories differ between incarnations, as they do when a step is trained anew."""
    return GENESIS if version == 0 else f"{incarnation:032x}{version:032x}"


@dataclass
class Promises:
    """What a run has told the outside; a crash must not break any of it."""

    cuts: dict[int, Cut] = field(default_factory=dict)
    """Everything ever handed to publication, by sequence."""
    acknowledged: int = 0
    """Newest sequence whose publication returned."""
    spent: int = 0
    """Newest sequence whose live name has been visible."""
    adopted: int = 0
    """Newest incarnation whose adoption returned."""

    def notice(self, change: str) -> None:
        """Learn from a change on the disk that a live name has become visible."""
        operation, _, path = change.partition(" ")
        name = path.rsplit("/", 1)[-1]
        number, version = names.parse_snapshot(name), names.parse_checkpoint(name)
        if operation != "rename" or (number is None and version is None):
            return
        self.spent = max(self.spent, number or max(self.cuts))

    def frozen(self) -> Promises:
        return replace(self, cuts=dict(self.cuts))


_BOOTSTRAP = Anchor(kind=AnchorKind.BOOTSTRAP, version=TrainerVersion(0), history=GENESIS)
