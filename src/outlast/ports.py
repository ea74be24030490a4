"""The ports: what the runtime asks of the world outside, as Protocols without implementations.

Each port has one contract suite (`tests/contracts/`) that every adapter and every fake passes.
Who raises what: an adapter raises `InfrastructureFailure` for time-outs, dead workers and
transport, `DataFailure` for what is deterministic for a prompt; any other exception is a bug and
stops the run. May import: `model`, `rows`, numpy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from outlast.model.groups import Receipt
from outlast.model.ids import AttemptKey, GroupId, Incarnation, Step, TrainerVersion, WeightVersion
from outlast.rows import Bool, Float32, Int32, Row

# ------------------------------------------------------------------------------------ prompts


@dataclass(frozen=True, slots=True)
class PromptItem:
    """One dataset item: either chat `messages` or raw `text`, and the fields a reward needs."""

    text: str | None
    messages: tuple[Mapping[str, str], ...] = ()
    fields: Mapping[str, object] = field(default_factory=dict)


class PromptSource(Protocol):
    """Map-style and pure: `item(index)` always gives the same item."""

    @property
    def digest(self) -> str:
        """Identity of the content: size + content digest, or generator name, version, arguments."""
        ...

    def __len__(self) -> int: ...

    def item(self, index: int) -> PromptItem:
        """The item at `index` in [0, len). Raises DataFailure when the row is unreadable."""
        ...


# --------------------------------------------------------------------------------- generation


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to sample. `temperature` 0 is greedy; `top_p` 1 and `top_k` 0 are off."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly decoded tokens of one request, in order; all arrays have the same length n >= 0."""

    ids: Int32
    logprobs: Float32  # log_softmax(logits / temperature) over the whole vocabulary (1 if greedy)
    versions: Int32  # trainer version that decoded each token
    finish: Literal["stop", "length", "aborted"] | None = None
    """Set on the last chunk of a request and only there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """Token ids in, token ids out. `prefix` are response tokens that were decoded before.

    `seed` identifies the random stream of this request: token position i of the response is drawn
    from stream (seed, i), whatever else is in the batch.
    """

    id: str
    incarnation: Incarnation
    prompt_ids: Int32
    sampling: SamplingParams
    seed: int
    prefix: TokenChunk | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A version of the policy in a form that this trainer's engines can load."""

    version: WeightVersion
    payload: object


class GenerationEngine(Protocol):
    """Continuous batching behind a token stream; weights change in flight, per-token versions."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        """Stream of chunks; the last has `finish`. Closing the iterator aborts the request."""
        ...

    async def abort(self, request_id: str, /) -> None:
        """End a request early; its stream finishes with "aborted". Unknown ids are ignored."""
        ...

    async def fence(self, incarnation: Incarnation, /) -> None:
        """Abort requests of other incarnations and refuse new ones from them."""
        ...

    async def update_weights(self, weights: Weights, /) -> WeightVersion:
        """Load `weights` between two decode iterations and acknowledge the pair now served."""
        ...

    @property
    def continues_prefixes(self) -> bool:
        """Whether a request with a `prefix` is prefilled and continued token-exactly."""
        ...

    @property
    def served(self) -> WeightVersion | None:
        """The acknowledged version; None before the first update."""
        ...


# ------------------------------------------------------------------------------- environments

Generate = Callable[[Int32, SamplingParams], "AsyncIterator[TokenChunk]"]
"""Given to an environment by the runtime: prompt ids and sampling -> stream of one generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """What an environment gets to fill one sibling. `seed` is stable per (run, group, sibling)."""

    item: PromptItem
    sampling: SamplingParams
    seed: int
    generate: Generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What an environment returns: a row without its key, and whether it hit a length limit."""

    prompt_ids: Int32
    response_ids: Int32
    logprobs: Float32
    weight_versions: Int32
    loss_mask: Bool
    reward: float
    truncated: bool
    mask_sample: bool = False
    extras: Mapping[str, float] = field(default_factory=dict)


class Environment(Protocol):
    """Turns a prompt into one rewarded rollout; single- or multi-turn is its own business."""

    @property
    def identity(self) -> Mapping[str, str]:
        """Name, version and whatever else decides what rollouts mean; part of the fingerprint."""
        ...

    async def rollout(self, request: RolloutRequest, /) -> Rollout:
        """Fill one sibling. Raises DataFailure or InfrastructureFailure; cancellation passes."""
        ...

    def shape(self, receipts: Sequence[Receipt], /) -> tuple[tuple[float, ...], tuple[bool, ...]]:
        """Group work: (trained reward, keep) per sibling from all raw rewards of the group."""
        ...


# --------------------------------------------------------------------------------- data plane


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A file a plane wrote or linked into a directory, relative to it, with its digest."""

    name: str
    size: int
    sha256: str


class PlaneHandle(Protocol):
    """A frozen inventory; pins what it names until it is closed."""

    @property
    def keys(self) -> frozenset[AttemptKey]:
        """Keys of all acknowledged rows at the freeze."""
        ...

    def close(self) -> None:
        """Unpin. Idempotent."""
        ...


class DataPlane(Protocol):
    """Where rows live. Acknowledged = in plane memory with a fixed place; durable on `save`."""

    async def put(self, rows: Sequence[Row], /) -> tuple[str, ...]:
        """Store rows and return their digests in order. A key is never put twice."""
        ...

    async def get(self, keys: Sequence[AttemptKey], /) -> tuple[Row, ...]:
        """The rows of `keys`, in order. A missing key raises InvariantError naming it."""
        ...

    async def release(self, keys: Sequence[AttemptKey], /) -> None:
        """Forget rows nobody names any more. Unknown keys are ignored."""
        ...

    def freeze(self) -> PlaneHandle:
        """Synchronous, O(index): the inventory of acknowledged keys at this instant."""
        ...

    async def save(
        self, handle: PlaneHandle, *, keys: frozenset[AttemptKey], directory: Path, link: bool
    ) -> tuple[SavedFile, ...]:
        """Write exactly the rows of `keys` below `directory`, durable when it returns.

        `link` False makes private copies (bundled cuts). Raises DiskFull or DiskError.
        """
        ...

    async def load(self, directory: Path, keys: frozenset[AttemptKey], /) -> None:
        """Fill an empty plane with exactly `keys`. Files are verified already by the caller."""
        ...

    async def close(self) -> None: ...


# ------------------------------------------------------------------------------------ trainer


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """One group of a chunk: keys, shaped rewards and keep flags per sibling (metadata only)."""

    id: GroupId
    keys: tuple[AttemptKey, ...]
    rewards: tuple[float, ...]
    keep: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What `finish_step` returns. `metrics` are scalars, among them loss and grad_norm."""

    step: Step
    metrics: Mapping[str, float]


class Trainer(Protocol):
    """One optimizer step at a time: begin, accumulate chunks, finish. Owns all tensors."""

    async def start(self, checkpoint: Path | None, version: TrainerVersion, /) -> None:
        """Load the initial model (None) or a checkpoint's ``trainer`` directory."""
        ...

    async def close(self) -> None: ...

    async def begin_step(self, step: Step, /) -> None: ...

    async def accumulate(self, groups: Sequence[TrainGroup], /) -> None:
        """Add the gradients of a chunk, fetching its rows from the data plane."""
        ...

    async def finish_step(self) -> StepOutcome:
        """Scale by the whole step's normaliser, clip, update. Failure here is fatal to the run."""
        ...

    async def abort_step(self) -> None:
        """Forget the open step: gradients zeroed. Legal until `finish_step` is entered."""
        ...

    async def weights(self, incarnation: Incarnation, /) -> Weights:
        """The current policy as a private copy that later steps do not change."""
        ...

    async def stage(self) -> StagedCheckpoint:
        """Copy the durable state aside; the next `finish_step` may follow when this returns."""
        ...

    async def digest(self) -> str:
        """sha256 over the policy's parameters, in a fixed order (S11)."""
        ...


class StagedCheckpoint(Protocol):
    """A private copy of trainer state waiting to be written."""

    async def write(self, directory: Path, /) -> None:
        """Write all files below `directory` (it exists, inside a tmp tree), synced."""
        ...
