"""Continuous batching: requests join and leave between two decode iterations.

Synchronous and single-threaded; `torch_engine` runs it on the engine's own thread. Weights change
only between iterations, so every token has exactly one version. With `deterministic`, each request
is prefilled and decoded alone: no number depends on what else is in the batch.
May import: torch, numpy, `ports`, the decoder and the sampler.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from outlast.adapters.engines.torch_decoder import Decoder
from outlast.adapters.engines.torch_sampling import SamplingRows, sample, stream_key, uniforms
from outlast.adapters.torch_model import State
from outlast.model.ids import Incarnation, WeightVersion
from outlast.ports import GenerationRequest, TokenChunk
from outlast.rows import Int32

FLUSH_INTERVAL_S = 0.02
"""Tokens of unfinished requests wait at most this long, so that one wake-up carries many."""
PREFILL_TOKENS_MAX = 8192
"""Padded tokens of one prefill pass: bounds memory and how long decoding rows wait."""

Finish = Literal["stop", "length", "aborted"]
Emit = Callable[[Sequence[tuple[int, TokenChunk]]], None]


@dataclass(slots=True)
class Active:
    """One request in the scheduler; the lists hold tokens that were not emitted yet."""

    ticket: int
    request: GenerationRequest
    context: Int32  # prompt, then prefix
    remaining: int  # tokens it may still decode
    stop: frozenset[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def take(self, finish: Finish | None) -> TokenChunk:
        """The pending tokens as a chunk; nothing is pending afterwards."""
        chunk = TokenChunk(
            ids=np.asarray(self.ids, dtype=np.int32),
            logprobs=np.asarray(self.logprobs, dtype=np.float32),
            versions=np.asarray(self.versions, dtype=np.int32),
            finish=finish,
        )
        self.ids, self.logprobs, self.versions = [], [], []
        return chunk


class _Slots:
    """Per-slot columns, beside the decoder's cache: slot i belongs to active request i."""

    def __init__(self, capacity: int) -> None:
        self.token = np.zeros(capacity, dtype=np.int64)  # sampled, not yet in the cache
        self.length = np.zeros(capacity, dtype=np.int64)  # tokens in the cache
        self.position = np.zeros(capacity, dtype=np.int64)  # of the next token in the response
        self.key = np.zeros(capacity, dtype=np.uint64)
        self.temperature = np.zeros(capacity, dtype=np.float32)
        self.top_p = np.zeros(capacity, dtype=np.float32)
        self.top_k = np.zeros(capacity, dtype=np.int64)

    def fill(self, slot: int, active: Active) -> None:
        request, sampling = active.request, active.request.sampling
        self.length[slot] = len(active.context)
        self.position[slot] = len(active.context) - len(request.prompt_ids)
        self.key[slot] = stream_key(request.seed)
        self.temperature[slot] = sampling.temperature
        self.top_p[slot], self.top_k[slot] = sampling.top_p, sampling.top_k

    def move(self, source: int, target: int) -> None:
        for name in vars(self):
            column = getattr(self, name)
            column[target] = column[source]

    def sampling(self, rows: slice) -> SamplingRows:
        return SamplingRows(
            temperature=self.temperature[rows],
            top_p=self.top_p[rows],
            top_k=self.top_k[rows],
            uniform=uniforms(self.key[rows], self.position[rows]),
        )


class Scheduler:
    """Owns the requests, the slots and the version that is served."""

    def __init__(
        self, decoder: Decoder, *, max_batch_size: int, deterministic: bool, emit: Emit
    ) -> None:
        self._decoder = decoder
        self._capacity = max_batch_size
        self._deterministic = deterministic
        self._emit = emit
        self._waiting: deque[Active] = deque()
        self._active: list[Active] = []
        self._slots = _Slots(max_batch_size)
        self._finished: list[tuple[Active, Finish]] = []
        self._flushed_s = 0.0
        self._version = -1

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._waiting or self._active or self._finished)

    def submit(self, ticket: int, request: GenerationRequest) -> None:
        """Queue a request; its first tokens come out of the next steps."""
        sampling, prefix = request.sampling, request.prefix
        done = prefix.ids if prefix is not None else np.zeros(0, dtype=np.int32)
        context = np.concatenate([request.prompt_ids, done])
        room = self._decoder.max_length - len(context)
        active = Active(
            ticket=ticket,
            request=request,
            context=context,
            remaining=min(sampling.max_new_tokens - len(done), room),
            stop=frozenset(sampling.stop_token_ids),
        )
        if len(done) and int(done[-1]) in active.stop:
            self._finished.append((active, "stop"))
        elif active.remaining <= 0:
            self._finished.append((active, "length"))
        else:
            self._waiting.append(active)

    def abort(self, ticket: int) -> None:
        """Finish one request as aborted. Unknown tickets are ignored."""
        self._abort_where(lambda active: active.ticket == ticket)

    def fence(self, incarnation: Incarnation) -> None:
        """Finish every request of another incarnation as aborted."""
        self._abort_where(lambda active: active.request.incarnation != incarnation)

    def update(self, state: State, version: WeightVersion) -> WeightVersion:
        """Load weights; the caches stay, and tokens sampled from now on carry the new version."""
        self._decoder.load(state)
        self._version = int(version.version)
        return version

    def step(self) -> None:
        """Admit what fits, decode one token for every active request, emit what is due."""
        self._admit()
        self._decode()
        self._flush()

    def _abort_where(self, chosen: Callable[[Active], bool]) -> None:
        for active in [a for a in self._waiting if chosen(a)]:
            self._waiting.remove(active)
            self._finished.append((active, "aborted"))
        self._retire([(s, "aborted") for s, a in enumerate(self._active) if chosen(a)])
        self._flush()

    def _admit(self) -> None:
        while self._waiting and len(self._active) < self._capacity:
            first = len(self._active)
            batch = self._next_batch()
            self._active += batch
            self._decoder.reserve(len(self._active), max(len(a.context) for a in batch))
            for slot, active in enumerate(batch, start=first):
                self._slots.fill(slot, active)
            self._accept(first, self._prefill(first, batch))

    def _next_batch(self) -> list[Active]:
        """The requests of the next prefill pass: in order of arrival, the same prompts adjacent."""
        room = 1 if self._deterministic else self._capacity - len(self._active)
        batch: list[Active] = []
        width, distinct = 0, set[bytes]()
        while self._waiting and len(batch) < room:
            context = self._waiting[0].context
            width = max(width, len(context))
            distinct.add(context.tobytes())
            if batch and width * len(distinct) > PREFILL_TOKENS_MAX:
                break
            batch.append(self._waiting.popleft())
        order: dict[bytes, list[Active]] = {}
        for active in batch:
            order.setdefault(active.context.tobytes(), []).append(active)
        # One of each prompt first: siblings share a prompt, which is computed once and copied.
        heads = [members[0] for members in order.values()]
        return heads + [active for members in order.values() for active in members[1:]]

    def _prefill(self, first: int, batch: Sequence[Active]) -> Tensor:
        if self._deterministic:
            return self._prefill_alone(first, batch[0])
        rows: dict[bytes, int] = {}
        for active in batch:
            rows.setdefault(active.context.tobytes(), len(rows))
        logits = self._decoder.prefill(first, [a.context for a in batch[: len(rows)]])
        picked = [rows[active.context.tobytes()] for active in batch]
        for offset in range(len(rows), len(batch)):
            source, length = first + picked[offset], len(batch[offset].context)
            self._decoder.copy_slot(source, first + offset, length=length)
        return logits if len(rows) == len(batch) else logits[picked]

    def _prefill_alone(self, first: int, active: Active) -> Tensor:
        # A prefix goes in token by token, the way it was decoded: the cache has the same bits.
        prompt = len(active.request.prompt_ids)
        logits = self._decoder.prefill(first, [active.context[:prompt]])
        self._decoder.reserve(len(self._active), len(active.context))
        for length in range(prompt, len(active.context)):
            token = active.context[length : length + 1].astype(np.int64)
            lengths = np.asarray([length], dtype=np.int64)
            logits = self._decoder.decode(first, tokens=token, lengths=lengths)
        return logits

    def _decode(self) -> None:
        count = len(self._active)
        if not count:
            return
        if not self._deterministic:
            self._decode_rows(0, count)
            return
        for slot in reversed(range(count)):  # a slot that retires is filled by a later, done one
            self._decode_rows(slot, 1)

    def _decode_rows(self, first: int, count: int) -> None:
        rows = slice(first, first + count)
        slots = self._slots
        # Room grows with what was written, not with budgets: most responses end far below them.
        self._decoder.reserve(len(self._active), int(slots.length[rows].max()) + 1)
        logits = self._decoder.decode(first, tokens=slots.token[rows], lengths=slots.length[rows])
        slots.length[rows] += 1
        self._accept(first, logits)

    def _accept(self, first: int, logits: Tensor) -> None:
        """Sample a token for the n slots first.. and retire the requests that end with it."""
        rows = slice(first, first + len(logits))
        tokens, logprobs = sample(logits, self._slots.sampling(rows))
        drawn, values = tokens.tolist(), logprobs.tolist()
        self._slots.token[rows] = drawn
        self._slots.position[rows] += 1
        ended: list[tuple[int, Finish]] = []
        for slot, (token, value) in enumerate(zip(drawn, values, strict=True), start=first):
            active = self._active[slot]
            active.ids.append(token)
            active.logprobs.append(value)
            active.versions.append(self._version)
            active.remaining -= 1
            if token in active.stop:
                ended.append((slot, "stop"))
            elif not active.remaining:
                ended.append((slot, "length"))
        self._retire(ended)

    def _retire(self, ended: Sequence[tuple[int, Finish]]) -> None:
        """Take requests out, from the last slot down, so that the one moved in is never ending."""
        for slot, finish in reversed(ended):
            self._finished.append((self._active[slot], finish))
            last = len(self._active) - 1
            if slot != last:
                self._decoder.copy_slot(last, slot, length=int(self._slots.length[last]))
                self._slots.move(last, slot)
                self._active[slot] = self._active[last]
            self._active.pop()
        if ended:
            self._decoder.drop_last(len(self._active))

    def _flush(self) -> None:
        due = [(active.ticket, active.take(finish)) for active, finish in self._finished]
        self._finished = []
        now_s = time.monotonic()
        if now_s - self._flushed_s >= FLUSH_INTERVAL_S:
            self._flushed_s = now_s
            due += [(active.ticket, active.take(None)) for active in self._active if active.ids]
        if due:
            self._emit(due)


def engine_dtype(name: str) -> torch.dtype:
    """The torch dtype of `generation.dtype`."""
    return torch.bfloat16 if name == "bfloat16" else torch.float32
