"""The broken twin of every shipped example."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel
from trainer.targets.examples.equal_sequences import EqualSequences
from trainer.targets.examples.images import ImageClassifier
from trainer.targets.examples.own_all_reduce import OwnAllReduce
from trainer.targets.examples.packed import PackedSequences
from trainer.targets.examples.sharded import Sharded
from trainer.targets.examples.zero import ShardedOptimizer


class MicroMeans(CausalLanguageModel):
    """The loss as the model returns it in Hugging Face's style: a mean per micro-batch, divided by their number."""

    name = "causal-lm-means"

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        model.zero_grad(set_to_none=True)
        for place, batch in enumerate(batches):
            model.require_backward_grad_sync = place == len(batches) - 1
            (self.loss_sum(model, batch) / self.count(batch) / len(batches)).backward()


class PackedCells(PackedSequences):
    """All cells of a row count in the denominator."""

    name = "packed-cells"

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        model.zero_grad(set_to_none=True)
        cells = ctx.all_reduce_sum(sum(batch["targets"].numel() for batch in batches))
        for place, batch in enumerate(batches):
            model.require_backward_grad_sync = place == len(batches) - 1
            (self.loss_sum(model, batch) * ctx.world_size / cells).backward()


class ImagesNotDivided(ImageClassifier):
    """Means of micro-batches, not divided by their number."""

    name = "images-not-divided"

    def accumulate(self, model: Any, batches: Sequence[tuple[Tensor, Tensor]], ctx: Any) -> float:
        model.zero_grad(set_to_none=True)
        for place, (images, classes) in enumerate(batches):
            model.require_backward_grad_sync = place == len(batches) - 1
            functional.cross_entropy(model(images), classes).backward()
        return 0.0


class SequencesByToken(EqualSequences):
    """The objective weighs sequences, the code weighs tokens."""

    name = "sequences-by-token"

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        CausalLanguageModel.accumulate(ByToken(), model, batches, ctx)


class ByToken(CausalLanguageModel):
    """Token sums, for the loop above."""


class ShardedMissing(Sharded):
    """FSDP2 divides by world_size; the factor that undoes it is missing."""

    name = "fsdp2-missing"

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        total = super().loss_sum(model, batch)
        return total / dist.get_world_size() if hasattr(model, "set_requires_gradient_sync") else total


class Forgotten(OwnAllReduce):
    """The own all-reduce forgets the output layer."""

    name = "own-all-reduce-forgets"

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        model.zero_grad(set_to_none=True)
        tokens = ctx.all_reduce_sum(sum(self.count(batch) for batch in batches))
        for batch in batches:
            self.loss_sum(model, batch).backward()
        for name, parameter in model.named_parameters():
            if not name.startswith("head"):
                dist.all_reduce(parameter.grad)
            parameter.grad.div_(tokens)


class SilentZero(ZeroRedundancyOptimizer):
    """Steps its own shard and does not send it to the others."""

    def _sync_params(self) -> None:
        """Do nothing."""


class ShardsApart(ShardedOptimizer):
    """The sharded optimizer does not send its shard to the other ranks."""

    name = "zero-apart"

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        return SilentZero(model.parameters(), torch.optim.AdamW, lr=1e-3)
