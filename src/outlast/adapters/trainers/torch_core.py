"""The trainer without its thread: model, AdamW, and one open step at a time.

Keeps: a streamed step equals the full batch up to summation order (gradients are sums, scaled once
at the end); the same rows in the same chunks give the same bits on one machine; what `staged`
copies is all that continuation needs. Where a rank of a sharded trainer differs (`sharded_core`),
it overrides a method that does nothing but that. May import: torch, `algorithms`, `ports`, its
siblings.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outlast.adapters.torch_model import copy_state, load_model, named_state
from outlast.adapters.trainers.torch_batch import (
    Judged,
    MicroBatch,
    Sample,
    collate,
    keeps_logits,
    micro_batches,
    samples_of,
    token_logprobs,
    with_advantages,
)
from outlast.adapters.trainers.torch_checkpoint import read_checkpoint
from outlast.adapters.trainers.torch_metrics import StepSums
from outlast.adapters.trainers.torch_schedule import learning_rate
from outlast.algorithms.losses import (
    PolicyLossConfig,
    k3_kl,
    normaliser,
    policy_loss,
    token_weights,
)
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.errors import InvariantError, NotRestorable
from outlast.model.ids import AttemptKey, Step, TrainerVersion
from outlast.ports import StepOutcome, TrainGroup
from outlast.rows import Row


class TrainerCore:
    """Synchronous; every method runs on the trainer's thread."""

    def __init__(
        self,
        *,
        directory: Path,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        temperature: float,
        deterministic: bool,
    ) -> None:
        self._directory = directory
        self._algorithm = algorithm
        self._training = training
        self._temperature = temperature
        self._deterministic = deterministic
        self._device = torch.device(training.device)
        self._loss = PolicyLossConfig(
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            truncation=algorithm.truncation,
            importance_correction=algorithm.importance_correction,
        )
        self.version = TrainerVersion(0)
        self._step: Step | None = None
        self._broken = False
        self._sums = StepSums()
        self._normaliser = 0

    # --------------------------------------------------------------------------------- life

    def load(self, checkpoint: Path | None, version: TrainerVersion) -> None:
        """The initial model, then the checkpoint over it. See `Trainer.start`."""
        if self._deterministic:
            torch.use_deterministic_algorithms(True)
        model = load_model(self._directory)
        self._reference = self._placed(copy.deepcopy(model)) if self._algorithm.kl_coef else None
        self._model = self._placed(model)
        self._sliced = keeps_logits(self._model)
        self._parameters = dict(self._model.named_parameters())
        self._optimizer = self._make_optimizer()
        if checkpoint is not None:
            self._restore(checkpoint)
            if self.version != version:
                raise NotRestorable(
                    f"checkpoint {checkpoint} holds trainer version {self.version}, its cut says "
                    f"{version}: the directory was changed after it was published"
                )
        self.version = version

    def _placed(self, model: torch.nn.Module) -> torch.nn.Module:
        """`model` where it computes."""
        return model.to(self._device)

    def _make_optimizer(self) -> torch.optim.AdamW:
        settings, parameters = self._training, list(self._parameters.values())
        # Decay pulls matrices towards zero; gains and biases have no reason to go there.
        decayed: dict[str, Any] = {"params": [p for p in parameters if p.ndim > 1]}
        others: dict[str, Any] = {
            "params": [p for p in parameters if p.ndim <= 1],
            "weight_decay": 0.0,
        }
        optimizer = torch.optim.AdamW(
            [decayed, others],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        for parameter in parameters:  # moments exist from the start: every checkpoint has one form
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=self._device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
            parameter.grad = torch.zeros_like(parameter)
        return optimizer

    # --------------------------------------------------------------------------------- step

    def begin(self, step: Step) -> None:
        """Open `step`, which must be the next one."""
        if self._step is not None or step != self.version + 1:
            raise InvariantError(
                f"begin_step({step}) refused: trainer at version {self.version}, open step "
                f"{self._step}; required: no open step and step {self.version + 1}"
            )
        self._step, self._broken = step, False
        self._sums, self._normaliser = StepSums(), 0
        self._optimizer.zero_grad(set_to_none=False)

    def accumulate(
        self,
        groups: Sequence[TrainGroup],
        rows: Mapping[AttemptKey, Row],
        *,
        abandoned: threading.Event,
    ) -> None:
        """Add gradient sums of a chunk; stops between micro-batches once `abandoned` is set."""
        self._require_open("accumulate")
        self._broken = True  # until the whole chunk is in
        samples = self._samples(groups, rows)
        loud = [s for s in samples if s.valid.any() and (s.advantage or self._algorithm.kl_coef)]
        for part in self._parts(loud):
            if self._stops(abandoned):
                return
            self._backward(self._collated(part))
        self._broken = False

    def _samples(
        self, groups: Sequence[TrainGroup], rows: Mapping[AttemptKey, Row]
    ) -> list[Sample]:
        """All siblings of a chunk, counted."""
        judged = with_advantages(groups, estimator=self._algorithm.advantage)
        samples = samples_of(judged, rows)
        self._count_samples(samples)
        self._count_groups(judged)
        return samples

    def _parts(self, loud: Sequence[Sample]) -> list[list[Sample]]:
        """The micro-batches of a chunk."""
        size = self._training.micro_batch_size
        return micro_batches(loud, size=size, ordered=self._deterministic)

    def _collated(self, part: Sequence[Sample]) -> MicroBatch:
        return collate(part, self._device)

    def _stops(self, abandoned: threading.Event) -> bool:
        """Whether the chunk ends before its next micro-batch."""
        return abandoned.is_set()

    def finish(self) -> StepOutcome:
        """Scale, clip, update. Raises InvariantError before touching weights if not finite."""
        step = self._require_open("finish_step")
        if self._broken:
            raise InvariantError(
                f"finish_step({step}) refused: a chunk was interrupted; abort the step"
            )
        self._settle_sums()
        gradients = self._gradients()
        if self._normaliser:
            torch._foreach_mul_(gradients, 1.0 / self._normaliser)
        norm = self._clip(gradients)
        if not math.isfinite(norm):
            raise InvariantError(
                f"finish_step({step}) refused: gradient norm {norm}; lower training.learning_rate "
                "or look for non-finite rewards; the weights were not touched"
            )
        rate = learning_rate(self._training, int(step))
        for parameter_group in self._optimizer.param_groups:
            parameter_group["lr"] = rate
        self._optimizer.step()
        self._step, self.version = None, TrainerVersion(int(step))
        metrics = self._sums.metrics(normaliser=self._normaliser)
        return StepOutcome(step, {**metrics, "grad_norm": norm, "learning_rate": rate})

    def _settle_sums(self) -> None:
        """Bring `_sums` and `_normaliser` to what they are for the whole step."""

    def _gradients(self) -> list[Tensor]:
        """The gradients of all parameters, as tensors to change in place."""
        return [p.grad for p in self._parameters.values() if p.grad is not None]

    def _clip(self, gradients: Sequence[Tensor]) -> float:
        """Scale `gradients` down to the allowed global norm; returns the norm they had."""
        limit = self._training.grad_clip
        return torch.nn.utils.clip_grad_norm_(self._parameters.values(), limit).item()

    def abort(self) -> None:
        """Forget the open step, if any; weights and moments are as before it."""
        self._step, self._broken = None, False
        self._optimizer.zero_grad(set_to_none=False)

    def _require_open(self, call: str) -> Step:
        if self._step is None:
            raise InvariantError(f"{call} refused: no step is open; call begin_step first")
        return self._step

    def _count_samples(self, samples: Sequence[Sample]) -> None:
        kinds, sums = self._algorithm.normalisation, self._sums
        for sample in samples:
            self._normaliser += normaliser(torch.tensor(sample.valid)[None], kinds)
            sums.count["tokens"] += int(sample.valid.sum())
            sums.total["response_length"] += len(sample.row.response_ids)
        sums.count["samples"] += len(samples)

    def _count_groups(self, judged: Sequence[Judged]) -> None:
        sums = self._sums
        for group, advantages in judged:
            kept = [r for r, keep in zip(group.rewards, group.keep, strict=True) if keep]
            sums.count["kept"] += len(kept)
            sums.total["reward"] += sum(kept)
            sums.count["silent_groups"] += not any(advantages)
        sums.count["groups"] += len(judged)

    def _backward(self, batch: MicroBatch) -> None:
        logprobs = self._logprobs(self._model, batch)
        behaviour = batch.behaviour[batch.valid]
        weights = token_weights(batch.valid, self._algorithm.normalisation)[batch.valid]
        advantages = batch.advantages.expand_as(batch.valid)[batch.valid]
        terms = policy_loss(logprobs, behaviour, advantages=advantages, config=self._loss)
        losses = terms.loss
        sums = self._sums
        if self._reference is not None:
            with torch.no_grad():
                reference = self._logprobs(self._reference, batch)
            divergence = k3_kl(logprobs, reference)
            losses = losses + self._algorithm.kl_coef * divergence
            sums.total["kl"] += divergence.sum().item()
        loss = (weights * losses).sum()
        loss.backward()
        if not len(logprobs):  # an empty micro-batch, which keeps ranks in step
            return
        gap = (logprobs.detach() - behaviour).abs()
        sums.total["loss"] += loss.item()
        sums.total["dlogp"] += gap.sum().item()
        sums.total["ratio"] += terms.ratio.sum().item()
        sums.total["clipped"] += terms.clipped.sum().item()
        sums.total["truncated"] += terms.truncated.sum().item()
        # KL(behaviour || policy) with roles swapped: the tokens are samples of the behaviour.
        sums.total["sampler_kl"] += k3_kl(behaviour, logprobs.detach()).sum().item()
        sums.count["trained_tokens"] += len(logprobs)
        sums.dlogp_max = max(sums.dlogp_max, gap.max().item())
        sums.ratio_max = max(sums.ratio_max, terms.ratio.max().item())

    def _logprobs(self, model: torch.nn.Module, batch: MicroBatch) -> Tensor:
        narrow = self._training.autocast == "bfloat16"
        autocast = torch.autocast(self._device.type, dtype=torch.bfloat16)
        with autocast if narrow else contextlib.nullcontext():
            return token_logprobs(model, batch, temperature=self._temperature, sliced=self._sliced)

    # -------------------------------------------------------------------------------- state

    def weights(self) -> dict[str, Tensor]:
        """A private float32 copy of parameters and persistent buffers on the CPU."""
        return {n: private_copy(self._whole(v)) for n, v in named_state(self._model).items()}

    def _whole(self, value: Tensor) -> Tensor:
        """All of a parameter or buffer."""
        return value.detach()

    def digest(self) -> str:
        """sha256 over name, dtype, shape and bytes of each parameter, in order of names (S11)."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self._parameters.items()):
            value = self._whole(parameter).cpu().contiguous()
            digest.update(f"{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
            digest.update(value.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def staged(self) -> dict[str, Tensor]:
        """Private CPU copies of everything a continuation needs, under the names on disk.

        Legal while a step is open: gradients are not state, and nothing else moves before finish.
        """
        return {name: private_copy(value) for name, value in self._durable().items()}

    def _durable(self) -> dict[str, Tensor]:
        """Name on disk -> live tensor. The schedule is a function of the version."""
        state = {f"model/{name}": value for name, value in named_state(self._model).items()}
        for name, parameter in self._parameters.items():
            for slot, value in self._optimizer.state[parameter].items():
                state[f"optimizer/{slot}/{name}"] = value
        state["version"] = torch.tensor(int(self.version), dtype=torch.int64)
        state["rng/cpu"] = torch.get_rng_state()
        if self._device.type == "cuda":
            state["rng/cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    def _blank(self, value: Tensor) -> Tensor:
        """Room on the CPU for what is read from a checkpoint in place of `value`."""
        return torch.empty_like(value, device="cpu")

    def _read(self, checkpoint: Path, targets: Mapping[str, Tensor]) -> None:
        read_checkpoint(checkpoint, targets)

    def _held(self, value: Tensor) -> Tensor:
        """The part of `value` that lives in this process."""
        return value

    def _restore(self, checkpoint: Path) -> None:
        live = self._durable()
        loaded = {name: self._blank(value) for name, value in live.items()}
        self._read(checkpoint, loaded)
        tensors = {n: v for n, v in live.items() if n.startswith(("model/", "optimizer/"))}
        copy_state(
            {name: self._held(loaded[name]) for name in tensors},
            {name: self._held(value) for name, value in tensors.items()},
        )
        self.version = TrainerVersion(int(loaded["version"]))
        torch.set_rng_state(loaded["rng/cpu"])
        if "rng/cuda" in loaded:
            torch.cuda.set_rng_state(loaded["rng/cuda"], self._device)


def private_copy(value: Tensor) -> Tensor:
    """A copy on the CPU that nobody else writes to."""
    return value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
