"""Example: DDP with an optimizer whose state is sharded over ranks; one step of it is compared too."""

from typing import Any

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from trainer.targets.examples.causal_lm import CausalLanguageModel


class ShardedOptimizer(CausalLanguageModel):
    """DDP with a ZeroRedundancyOptimizer."""

    name = "zero"

    def optimizer(self, model: Any) -> torch.optim.Optimizer:
        """Return the optimizer; the service gives it the objective's gradient and compares one step."""
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
