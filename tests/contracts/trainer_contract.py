"""What every `Trainer` must do, adapters and fakes alike.

Subclass `TrainerContract` in a test module, name the class ``Test...`` and implement `make`;
override `run` to drive another event loop than asyncio's own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import InvariantError, RefusedState
from outlast.model.ids import Incarnation, Step, TrainerVersion, WeightVersion
from outlast.ports import StepOutcome, Trainer, TrainGroup

START = TrainerVersion(0)


@dataclass(frozen=True, kw_only=True)
class TrainerSubject:
    """Equal trainers over one data plane that holds the rows of `groups`."""

    make: Callable[[], Trainer]
    """A trainer that was not started; every call gives an equal one."""
    groups: Callable[[int], Sequence[TrainGroup]]
    """Four groups of a step, at least one of them with different rewards."""
    silent_groups: Callable[[int], Sequence[TrainGroup]]
    """Groups of a step whose rewards are all equal."""
    fingerprint: Callable[[object], str]
    """A digest of `Weights.payload`."""
    tolerance: float = 1e-5


async def take_step(
    trainer: Trainer, step: int, groups: Sequence[TrainGroup], *, chunk: int = 4
) -> StepOutcome:
    """One whole step in chunks of `chunk` groups."""
    await trainer.begin_step(Step(step))
    for start in range(0, len(groups), chunk):
        await trainer.accumulate(groups[start : start + chunk])
    return await trainer.finish_step()


class TrainerContract:
    """The suite."""

    def make(self) -> TrainerSubject:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(work)

    def check(self, test: Callable[[TrainerSubject, Trainer], Coroutine[Any, Any, None]]) -> None:
        """Run `test` with a started trainer at version 0."""

        async def body() -> None:
            subject = self.make()
            trainer = subject.make()
            await trainer.start(None, START)
            try:
                await test(subject, trainer)
            finally:
                await trainer.close()

        self.run(body())

    def test_step_changes_the_policy_and_reports_finite_metrics(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            before = await trainer.digest()
            outcome = await take_step(trainer, 1, subject.groups(1))
            assert outcome.step == 1
            assert {"loss", "grad_norm"} <= outcome.metrics.keys()
            assert all(math.isfinite(value) for value in outcome.metrics.values())
            assert outcome.metrics["grad_norm"] > 0
            assert await trainer.digest() != before

        self.check(test)

    def test_weights_are_a_private_copy_of_a_version(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            first = await trainer.weights(Incarnation(3))
            assert first.version == WeightVersion(Incarnation(3), TrainerVersion(0))
            before = subject.fingerprint(first.payload)
            await take_step(trainer, 1, subject.groups(1))
            second = await trainer.weights(Incarnation(3))
            assert second.version == WeightVersion(Incarnation(3), TrainerVersion(1))
            assert subject.fingerprint(first.payload) == before
            assert subject.fingerprint(second.payload) != before

        self.check(test)

    def test_same_rows_give_the_same_bits(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            other = subject.make()
            await other.start(None, START)
            try:
                for step in (1, 2):
                    ours = await take_step(trainer, step, subject.groups(step))
                    theirs = await take_step(other, step, subject.groups(step))
                    assert ours == theirs
                assert await trainer.digest() == await other.digest()
            finally:
                await other.close()

        self.check(test)

    @pytest.mark.parametrize("chunk", [1, 2])
    def test_streamed_step_equals_the_whole_step(self, chunk: int) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            streamed = subject.make()
            await streamed.start(None, START)
            try:
                whole = await take_step(trainer, 1, subject.groups(1))
                parts = await take_step(streamed, 1, subject.groups(1), chunk=chunk)
                close = pytest.approx(dict(whole.metrics), rel=subject.tolerance, abs=1e-7)
                assert dict(parts.metrics) == close
            finally:
                await streamed.close()

        self.check(test)

    def test_calls_out_of_order_are_refused(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            with pytest.raises(InvariantError):
                await trainer.accumulate(subject.groups(1))
            with pytest.raises(InvariantError):
                await trainer.finish_step()
            with pytest.raises(InvariantError):
                await trainer.begin_step(Step(2))
            await trainer.begin_step(Step(1))
            with pytest.raises(InvariantError):
                await trainer.begin_step(Step(1))

        self.check(test)

    def test_aborted_step_leaves_no_trace(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            other = subject.make()
            await other.start(None, START)
            try:
                before = await trainer.digest()
                await trainer.begin_step(Step(1))
                await trainer.accumulate(subject.groups(2))
                await trainer.abort_step()
                assert await trainer.digest() == before
                ours = await take_step(trainer, 1, subject.groups(1))
                assert ours == await take_step(other, 1, subject.groups(1))
                assert await trainer.digest() == await other.digest()
            finally:
                await other.close()

        self.check(test)

    def test_silent_groups_train_with_zero_gradient(self) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            outcome = await take_step(trainer, 1, subject.silent_groups(1))
            assert outcome.metrics["grad_norm"] == 0
            assert outcome.metrics["loss"] == 0
            weights = await trainer.weights(Incarnation(1))
            assert weights.version.version == 1

        self.check(test)

    def test_A1_checkpoint_continues_bit_for_bit(self, tmp_path: Path) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            for step in (1, 2):
                await take_step(trainer, step, subject.groups(step))
            staged = await trainer.stage()
            expected = [await take_step(trainer, step, subject.groups(step)) for step in (3, 4)]
            await staged.write(tmp_path)  # later steps must not have reached the staged copy
            other = subject.make()
            await other.start(tmp_path, TrainerVersion(2))
            try:
                observed = [await take_step(other, step, subject.groups(step)) for step in (3, 4)]
                assert observed == expected
                assert await other.digest() == await trainer.digest()
            finally:
                await other.close()

        self.check(test)

    def test_checkpoint_of_another_version_is_refused(self, tmp_path: Path) -> None:
        async def test(subject: TrainerSubject, trainer: Trainer) -> None:
            await take_step(trainer, 1, subject.groups(1))
            await (await trainer.stage()).write(tmp_path)
            other = subject.make()
            try:
                with pytest.raises(RefusedState, match="version"):
                    await other.start(tmp_path, TrainerVersion(2))
            finally:
                await other.close()

        self.check(test)
