"""One rank of a sharded trainer without its thread: `TrainerCore` over FSDP2.

Keeps: a step equals that of the embedded trainer up to summation order (gradients are sums over
ranks, scaled once by the normaliser of all); every rank runs the same number of passes, so that no
collective waits for ever; checkpoints have the embedded trainer's form and fit any number of ranks.
May import: torch, `ports`, its siblings.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from outlast.adapters.trainers.sharded_group import Ranks
from outlast.adapters.trainers.torch_batch import (
    MicroBatch,
    Sample,
    collate,
    empty_batch,
    micro_batches,
    samples_of,
    with_advantages,
)
from outlast.adapters.trainers.torch_checkpoint import held, read_checkpoint
from outlast.adapters.trainers.torch_core import TrainerCore, private_copy
from outlast.adapters.trainers.torch_metrics import StepSums
from outlast.config.schema import AlgorithmSection, TrainingSection
from outlast.model.ids import AttemptKey
from outlast.ports import TrainGroup
from outlast.rows import Row

CLIP_EPS = 1e-6
"""As in torch's `clip_grad_norm_`, which the embedded trainer uses."""


class ShardedCore(TrainerCore):
    """Synchronous; every method runs on the rank's training thread, on all ranks in one order.

    `accumulate` gets all groups of a chunk and the rows of this rank's share only.
    """

    def __init__(
        self,
        *,
        directory: Path,
        algorithm: AlgorithmSection,
        training: TrainingSection,
        temperature: float,
        deterministic: bool,
        ranks: Ranks,
    ) -> None:
        super().__init__(
            directory=directory,
            algorithm=algorithm,
            training=training,
            temperature=temperature,
            deterministic=deterministic,
        )
        self._ranks = ranks

    def _placed(self, model: nn.Module) -> nn.Module:
        model = super()._placed(model)
        for block in blocks_of(model):
            fully_shard(block, mesh=self._ranks.mesh)
        fully_shard(model, mesh=self._ranks.mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                _sum_gradients(module)
        return model

    # --------------------------------------------------------------------------------- step

    def _samples(
        self, groups: Sequence[TrainGroup], rows: Mapping[AttemptKey, Row]
    ) -> list[Sample]:
        """The siblings of this rank, counted; groups are counted by rank 0."""
        judged = with_advantages(groups, estimator=self._algorithm.advantage)
        samples: list[Sample] = []
        self._ranks.agreed(lambda: samples.extend(samples_of(judged, rows, only=rows.keys())))
        self._count_samples(samples)
        if self._ranks.rank == 0:
            self._count_groups(judged)
        return samples

    def _parts(self, loud: Sequence[Sample]) -> list[list[Sample]]:
        """As many on every rank as on the one that has most; an empty one is run as padding.

        A prompt is not run once for its siblings: that takes two passes, and ranks would differ.
        """
        size = self._training.micro_batch_size
        parts = micro_batches(loud, size=size, ordered=self._deterministic, share_prompts=False)
        most = max(self._ranks.gathered(len(parts)))
        return [*parts, *([] for _ in range(most - len(parts)))]

    def _collated(self, part: Sequence[Sample]) -> MicroBatch:
        if not part:
            return empty_batch(self._device)
        return collate(part, self._device, share_prompts=False)

    def _stops(self, abandoned: threading.Event) -> bool:
        """All ranks stop before the same micro-batch."""
        return self._ranks.any(abandoned.is_set())

    def _settle_sums(self) -> None:
        parts = self._ranks.gathered((self._sums, self._normaliser))
        self._sums = StepSums.merged(sums for sums, _ in parts)
        self._normaliser = sum(count for _, count in parts)

    def _gradients(self) -> list[Tensor]:
        return [self._held(gradient) for gradient in super()._gradients()]

    def _clip(self, gradients: Sequence[Tensor]) -> float:
        norms = torch.stack(torch._foreach_norm(list(gradients))).double()
        norm = math.sqrt(sum(self._ranks.gathered(norms.square().sum().item())))
        factor = self._training.grad_clip / (norm + CLIP_EPS)
        if factor < 1.0:
            torch._foreach_mul_(list(gradients), factor)
        return norm

    # -------------------------------------------------------------------------------- state

    def _whole(self, value: Tensor) -> Tensor:
        """Collective: every rank gets all of it."""
        return value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()

    def staged(self) -> dict[str, Tensor]:
        """Private copies of this rank's shards; what every rank has the same, rank 0 keeps."""
        return {
            name: self._private_shard(value)
            for name, value in self._durable().items()
            if isinstance(value, DTensor) or self._ranks.rank == 0
        }

    def _private_shard(self, value: Tensor) -> Tensor:
        if not isinstance(value, DTensor):
            return private_copy(value)
        return self._like(value, private_copy(value.to_local()))

    def _blank(self, value: Tensor) -> Tensor:
        if not isinstance(value, DTensor):
            return super()._blank(value)
        return self._like(value, torch.empty_like(value.to_local(), device="cpu"))

    def _read(self, checkpoint: Path, targets: Mapping[str, Tensor]) -> None:
        """A file that one rank cannot read is refused by all."""
        self._ranks.agreed(lambda: read_checkpoint(checkpoint, targets))

    def _like(self, value: DTensor, local: Tensor) -> DTensor:
        """`local`, on the CPU, as the shard of a tensor distributed as `value` is."""
        return DTensor.from_local(
            local,
            self._ranks.cpu_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )

    def _held(self, value: Tensor) -> Tensor:
        return held(value).detach()


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a transformer: the members of its largest list of equal modules."""
    lists = [list(m) for m in model.modules() if isinstance(m, nn.ModuleList)]
    alike = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    return max(alike, key=_size, default=[])


def _size(blocks: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def _sum_gradients(module: FSDPModule) -> None:
    """Sums over ranks, not means. Plain sums on the wire too: gloo has no scaled ones."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
