"""Example: FSDP2's `fully_shard`, whose gradients are shards, averaged over ranks like DDP's."""

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.distributed.fsdp import fully_shard

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel


class Sharded(CausalLanguageModel):
    """FSDP2's fully_shard instead of DDP."""

    name = "fsdp2"

    def wrap(self, model: Any, ctx: Any) -> nn.Module:
        """Shard every layer, then what is left."""
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
        for layer in model.layers.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        wrapped: nn.Module = model
        return wrapped

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Leave the window's gradient; gradients are reduced with the last micro-batch."""
        model.zero_grad(set_to_none=True)
        tokens = ctx.all_reduce_sum(sum(self.count(batch) for batch in batches))
        for place, batch in enumerate(batches):
            model.set_requires_gradient_sync(place == len(batches) - 1)
            loss = self.loss_sum(model, batch) * ctx.world_size / tokens  # it divides by world_size, as DDP does
            loss.backward()
