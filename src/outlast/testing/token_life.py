"""One life of the real program with long responses, watched token by token, that kills itself.

The real wiring, controller, engine, trainer and disk; engine and plane are wrapped by observers
that write what passes to a log that survives a SIGKILL. The log is written before the controller
sees a chunk, the kill comes after it has taken one in: the log holds what was received, no less.
A gate can hold all streams at one token until a cut with it is published, the last one before the
kill. May import: `cli.wiring`, `config`, `ports`, `runtime.snapshot`, `testing.shadow`; torch only
in what it calls.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from outlast.cli import factories, wiring
from outlast.config.load import load_recipe
from outlast.config.schema import Recipe
from outlast.ports import DataPlane, GenerationEngine, GenerationRequest, TokenChunk
from outlast.rows import Row
from outlast.runtime.snapshot import SnapshotPump
from outlast.telemetry.events import AnyEvent, SkipReason, SnapshotPublished, SnapshotSkipped
from outlast.testing.shadow import Tokens

SIBLINGS = 2
RESPONSE_TOKENS = 1000
CUTS_UNTIL_OPEN = 2
"""A save that had begun when the last stream reached the gate holds fewer tokens; the next one,
or the news that nothing has changed since, does not."""


class Requested(msgspec.Struct, frozen=True, tag=True):
    """An attempt has asked the engine to continue from `prefix`."""

    key: str
    prefix: Tokens


class Received(msgspec.Struct, frozen=True, tag=True):
    """An attempt is about to receive these tokens."""

    key: str
    tokens: Tokens


class Stored(msgspec.Struct, frozen=True, tag=True):
    """A row was put into the data plane."""

    key: str
    tokens: Tokens


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """A snapshot was published."""

    sequence: int


Record = Requested | Received | Stored | Acknowledged


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How a life ends: SIGKILL once any stream has received `kill_at` tokens, unless it is None.
    With `cut_at`, all streams wait at that token until a snapshot holds it; no other follows."""

    kill_at: int | None = None
    cut_at: int | None = None


class _Log:
    """Appended to with plain writes: the page cache outlives the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, record: Record) -> None:
        os.write(self._fd, msgspec.json.encode(record) + b"\n")


def read_log(path: Path) -> list[Record]:
    """What a life has logged, in order; empty when it logged nothing."""
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


class _Gate:
    """Holds streams until a cut holds what they have received, and ends the process."""

    def __init__(self, fate: Fate, log: _Log) -> None:
        self._fate, self._log = fate, log
        self._waiting = 0
        self._cuts = CUTS_UNTIL_OPEN
        self._open = asyncio.Event()

    @property
    def last_cut_taken(self) -> bool:
        """Whether the cut that was waited for is published."""
        return self._open.is_set()

    async def passed(self, count: int) -> None:
        """A stream has received `count` tokens in all."""
        kill_at, cut_at = self._fate.kill_at, self._fate.cut_at
        if cut_at is not None and count >= cut_at and not self._open.is_set():
            self._waiting += 1
            await self._open.wait()
        if kill_at is not None and count >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, event: AnyEvent, wall: float, /) -> None:
        """Sink: count what is published once every stream waits."""
        unchanged = isinstance(event, SnapshotSkipped) and event.reason is SkipReason.NO_MUTATIONS
        if isinstance(event, SnapshotPublished):
            self._log.write(Acknowledged(event.sequence))
        elif not unchanged:
            return
        if self._waiting == SIBLINGS:
            self._cuts -= 1
            if self._cuts <= 0:
                self._open.set()


class _WatchedEngine:
    """A `GenerationEngine` whose streams are logged and pass the gate."""

    def __init__(self, inner: GenerationEngine, log: _Log, *, gate: _Gate) -> None:
        self._inner, self._log, self._gate = inner, log, gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: GenerationRequest, /) -> AsyncIterator[TokenChunk]:
        prompt = Tokens(prompt=request.prompt_ids.tobytes())
        key, seen = request.id.rpartition(".")[0], prompt.plus(request.prefix)
        self._log.write(Requested(key, seen))
        async for chunk in self._inner.generate(request):
            self._log.write(Received(key, prompt.plus(chunk)))
            seen = seen.plus(chunk)
            yield chunk
            await self._gate.passed(len(seen))


class _WatchedPlane:
    """A `DataPlane` whose rows are logged."""

    def __init__(self, inner: DataPlane, log: _Log) -> None:
        self._inner, self._log = inner, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, rows: Sequence[Row], /) -> tuple[str, ...]:
        for row in rows:
            self._log.write(Stored(str(row.key), Tokens.of_row(row)))
        return await self._inner.put(rows)


def overrides(model: Path, *, seed: int) -> tuple[str, ...]:
    """One group of two responses of 1,000 tokens, one step, a snapshot whenever there is time."""
    return (
        f"seed={seed}",
        f"model.path={model}",
        "algorithm.num_prompts_per_step=1",
        f"algorithm.num_generations_per_prompt={SIBLINGS}",
        "algorithm.max_num_steps=1",
        "async_rl.sampler.lookahead=0",
        "async_rl.min_groups_for_streaming_train=1",
        "async_rl.max_inflight_prompts=1",
        "async_rl.max_buffered_rollouts=1",
        f"generation.max_new_tokens={RESPONSE_TOKENS}",
        "rollout_recovery.default_level=token",
        "rollout_checkpointing.snapshot_attempt_interval_s=0.05",
        "validation.enabled=false",
    )


def live(model: Path, run_dir: Path, *, log: Path, seed: int, fate: Fate) -> None:
    """Start or resume the run, and live until the end or the kill."""
    writer = _Log(log)
    gate = _Gate(fate, writer)
    make_engine, make_plane = factories.make_engine, factories.make_plane

    def engine(recipe: Recipe, **kw: Any) -> Any:
        return _WatchedEngine(make_engine(recipe, **kw), writer, gate=gate)

    def plane(*args: Any, **kw: Any) -> Any:
        return _WatchedPlane(make_plane(*args, **kw), writer)

    real = SnapshotPump.attempt

    async def attempt(self: SnapshotPump, *, final: bool = False) -> bool:
        return not gate.last_cut_taken and await real(self, final=final)

    loaded = load_recipe(None, overrides(model, seed=seed))
    with (
        patch.object(wiring, "make_engine", engine),
        patch.object(wiring, "make_plane", plane),
        patch.object(SnapshotPump, "attempt", attempt),
    ):
        wiring.run_training(loaded, wiring.Launch(run_dir), sinks=[gate])


def save_model(directory: Path) -> None:
    """A random model of the built-in one's size with a long context, and a tokenizer without an end
    token: nothing stops a response but its budget."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from outlast.assets import make_tiny

    torch.manual_seed(make_tiny.MODEL_SEED)
    config = LlamaConfig(
        vocab_size=len(make_tiny.VOCABULARY),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        max_position_embeddings=RESPONSE_TOKENS + 64,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    make_tiny.save_tokenizer(directory)
    settings = directory / "tokenizer_config.json"
    fields = msgspec.json.decode(settings.read_bytes())
    fields.pop("eos_token")
    settings.write_bytes(msgspec.json.encode(fields))
