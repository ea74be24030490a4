"""One attempt of one sibling: prompt in, sealed row or a charged failure out.

Laws: S3 (a row the ledger refuses changes nothing, is released and counted), P1 at level token
(what was decoded before is handed to the engine as a prefix and never decoded again).
May import: `model`, `ports`, `rows`, `runtime.board`, `runtime.prefixes`, `runtime.seeds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np

from outlast.errors import DataFailure, InfrastructureFailure, RolloutFailure
from outlast.model.groups import FailureKind, Receipt, RecoveryLevel
from outlast.model.ids import AttemptKey, GroupId, SiblingIndex, TrainerVersion
from outlast.model.ledger import Verdict
from outlast.ports import (
    DataPlane,
    Environment,
    GenerationEngine,
    GenerationRequest,
    PromptItem,
    Rollout,
    RolloutRequest,
    SamplingParams,
    TokenChunk,
)
from outlast.rows import Int32, Row
from outlast.runtime.board import Board, InFlight
from outlast.runtime.prefixes import Prefix
from outlast.runtime.seeds import attempt_seed, sibling_seed
from outlast.telemetry import events


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSettings:
    """What the recipe says about a single attempt. `timeout_s` in seconds."""

    seed: int
    repeatable: bool
    """Every attempt of a sibling draws from one stream (deterministic runs)."""
    sampling: SamplingParams
    timeout_s: float


class Attempts:
    """Dispatches attempts and turns their results into ledger events."""

    def __init__(
        self,
        board: Board,
        settings: AttemptSettings,
        *,
        engine: GenerationEngine,
        environment: Environment,
        plane: DataPlane,
    ) -> None:
        self._board = board
        self._settings = settings
        self._engine = engine
        self._environment = environment
        self._plane = plane

    def dispatch(self, group_id: GroupId, index: SiblingIndex) -> AttemptKey:
        """Begin the sibling's next attempt, with the tokens that earlier ones left."""
        board = self._board
        keeps = board.state.ledger.groups[group_id].level is RecoveryLevel.TOKEN
        prefix = board.prefixes.take(group_id, index) if keeps else None
        inherited = prefix.version if prefix is not None else None
        version = board.acknowledged if inherited is None else min(inherited, board.acknowledged)
        key = board.state.dispatch(group_id, index, version=version)
        board.inflight[key] = InFlight(started=board.world.clock.monotonic(), prefix=prefix)
        board.bus.emit(
            events.AttemptDispatched(
                key=str(key),
                version=board.acknowledged,
                prefix_tokens=0 if prefix is None else prefix.tokens,
            )
        )
        return key

    async def run(self, key: AttemptKey, item: PromptItem) -> FailureKind | None:
        """Run a dispatched attempt. None when its row was offered, else the budget charged."""
        board = self._board
        flight = board.inflight[key]
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                rollout = await self._environment.rollout(self._request(key, item))
            await self._seal(key, rollout, since=flight.started)
            return None
        except DataFailure as error:
            return self.failed(key, FailureKind.DATA, error=error)
        except RolloutFailure as error:
            self._pass_on(key, flight.prefix)
            return self.failed(key, FailureKind.INFRASTRUCTURE, error=error)
        except TimeoutError:
            self._pass_on(key, flight.prefix)
            late = InfrastructureFailure(f"no answer in {self._settings.timeout_s:g} s")
            return self.failed(key, FailureKind.INFRASTRUCTURE, error=late)
        except asyncio.CancelledError:  # the run stops: its last cut must not lose the tokens
            self._pass_on(key, flight.prefix)
            raise
        finally:
            board.inflight.pop(key, None)

    def unreadable(self, group_id: GroupId, index: SiblingIndex, *, error: DataFailure) -> None:
        """Charge an attempt that ends before it begins: its prompt cannot be read. Tokens that wait
        for the sibling go on waiting."""
        board = self._board
        version = board.acknowledged
        key = board.state.dispatch(group_id, index, version=version)
        event = events.AttemptDispatched(key=str(key), version=version, prefix_tokens=0)
        board.bus.emit(event)
        self.failed(key, FailureKind.DATA, error=error)

    def failed(self, key: AttemptKey, kind: FailureKind, *, error: RolloutFailure) -> FailureKind:
        """Charge a failed attempt, unless it was superseded meanwhile."""
        verdict = self._board.state.fail(key, kind)
        cause = f"{type(error).__name__}: {error}"
        if verdict is Verdict.ACCEPTED:
            event = events.AttemptFailed(key=str(key), kind=kind.value, cause=cause)
            self._board.bus.emit(event)
        return kind

    def _pass_on(self, key: AttemptKey, prefix: Prefix | None) -> None:
        if prefix is not None and key.group in self._board.state.ledger.groups:
            self._board.prefixes.leave(key, prefix)

    # ----------------------------------------------------------------------------- generation

    def _request(self, key: AttemptKey, item: PromptItem) -> RolloutRequest:
        turn = 0

        def generate(prompt_ids: Int32, sampling: SamplingParams) -> AsyncIterator[TokenChunk]:
            nonlocal turn
            turn += 1
            prefix = self._prefix_of(key, prompt_ids, turn=turn)
            request = GenerationRequest(
                id=f"{key}.t{turn}",
                incarnation=key.incarnation,
                prompt_ids=prompt_ids,
                sampling=sampling,
                seed=attempt_seed(
                    self._settings.seed, key, turn=turn, repeatable=self._settings.repeatable
                ),
                prefix=None if prefix is None else prefix.joined(),
            )
            return self._stream(key, request, record=prefix)

        return RolloutRequest(
            item=item,
            sampling=self._settings.sampling,
            seed=sibling_seed(self._settings.seed, key),
            generate=generate,
        )

    def _prefix_of(self, key: AttemptKey, prompt_ids: Int32, *, turn: int) -> Prefix | None:
        """Where this generation records its tokens; None where they are not kept.

        A later turn ends the record: what the environment did in between is not part of it.
        """
        flight = self._board.inflight.get(key)
        if flight is None or flight.prefix is None:
            return None
        if turn > 1:
            flight.prefix = None
            return None
        prefix = flight.prefix
        if prefix.prompt_ids is not None and not np.array_equal(prefix.prompt_ids, prompt_ids):
            message = f"{key}: the prompt has other tokens than its prefix followed; starting over"
            self._board.bus.emit(events.Warned(message=message))
            prefix = flight.prefix = Prefix()
        prefix.prompt_ids = prompt_ids
        return prefix

    async def _stream(
        self, key: AttemptKey, request: GenerationRequest, *, record: Prefix | None
    ) -> AsyncIterator[TokenChunk]:
        """The inherited tokens first, then what the engine decodes, counted and recorded."""
        board = self._board
        if request.prefix is not None:
            yield request.prefix
        async for chunk in self._engine.generate(request):
            board.generated_tokens += len(chunk.ids)
            # An environment may read on after its attempt has ended: by then the record has passed
            # to another attempt, and these tokens belong to nobody (S3).
            if (flight := board.inflight.get(key)) is not None:
                flight.tokens += len(chunk.ids)
                if record is not None and flight.prefix is record:
                    record.append(chunk)
                    board.prefix_tokens += len(chunk.ids)
            yield chunk

    # -------------------------------------------------------------------------------- sealing

    async def _seal(self, key: AttemptKey, rollout: Rollout, *, since: float) -> None:
        """Store the row, then offer it; a row the ledger refuses is released and counted (S3)."""
        board = self._board
        row = _row(key, rollout)
        try:
            (digest,) = await self._plane.put([row])
        except asyncio.CancelledError:
            board.orphan([key])  # stored or not: nobody will name it
            raise
        receipt = _receipt(row, rollout, digest=digest, served=board.acknowledged)
        board.world.perhaps("rollout.before_seal")
        verdict = board.state.seal(receipt)
        if verdict is not Verdict.ACCEPTED:
            board.bus.emit(events.ResultIgnored(key=str(key), verdict=verdict.value))
            board.orphan([key])
            return
        board.sealed_since_cut[key] = receipt.response_tokens
        board.bus.emit(
            events.SiblingSealed(
                key=str(key),
                tokens=receipt.response_tokens,
                reward=receipt.reward,
                versions=(receipt.min_version, receipt.max_version),
                seconds=board.world.clock.monotonic() - since,
            )
        )
        board.world.perhaps("rollout.after_seal")
        board.changed.notify()


def _row(key: AttemptKey, rollout: Rollout) -> Row:
    return Row(
        key=key,
        prompt_ids=rollout.prompt_ids,
        response_ids=rollout.response_ids,
        logprobs=rollout.logprobs,
        weight_versions=rollout.weight_versions,
        loss_mask=rollout.loss_mask,
        reward=rollout.reward,
        mask_sample=rollout.mask_sample,
        extras=rollout.extras,
    )


def _receipt(row: Row, rollout: Rollout, *, digest: str, served: TrainerVersion) -> Receipt:
    versions = row.weight_versions[row.loss_mask]
    return Receipt(
        key=row.key,
        digest=digest,
        reward=float(np.float32(rollout.reward)),  # as the row stores it
        prompt_tokens=len(row.prompt_ids),
        response_tokens=len(row.response_ids),
        min_version=TrainerVersion(int(versions.min())) if len(versions) else served,
        max_version=TrainerVersion(int(versions.max())) if len(versions) else served,
        truncated=rollout.truncated,
        mask_sample=rollout.mask_sample,
    )
