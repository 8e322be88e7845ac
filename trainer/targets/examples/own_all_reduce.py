"""Example: a plain module whose gradients the loop adds up over ranks itself."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from trainer.targets.examples.causal_lm import Batch, CausalLanguageModel


class OwnAllReduce(CausalLanguageModel):
    """A plain module and an all-reduce of its gradients."""

    name = "own-all-reduce"

    def wrap(self, model: nn.Module, ctx: Any) -> nn.Module:
        """Return the model as it is."""
        return model

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Leave the window's gradient: sums over ranks, divided once by the number of all tokens."""
        model.zero_grad(set_to_none=True)
        tokens = ctx.all_reduce_sum(sum(self.count(batch) for batch in batches))
        for batch in batches:
            self.loss_sum(model, batch).backward()  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(tokens)
