"""Targets of the benchmark of gradient audits: ten million parameters, right and with a mistake."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]
VOCABULARY = 4096
WIDTH = 320


class LargeModel(nn.Module):
    """A transformer encoder of about ten million parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (batch, length) to logits (batch, length, VOCABULARY)."""
        logits: Tensor = self.head(self.layers(self.tokens(ids)))
        return logits


class Large:
    """The right loop on a large model."""

    name = "large"
    unit = "token"

    def build_model(self) -> nn.Module:
        """Return the model."""
        return LargeModel()

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        """Return two micro-batches of unequal length."""
        draw = torch.Generator().manual_seed(10 * step + rank)
        return [
            (torch.randint(VOCABULARY, (4, size), generator=draw), torch.randint(VOCABULARY, (4, size), generator=draw))
            for size in (24 + 16 * rank, 32 + 8 * rank)
        ]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses of all tokens."""
        ids, targets = batch
        return functional.cross_entropy(model(ids).flatten(0, 1), targets.flatten(), reduction="sum")

    def count(self, batch: Batch) -> int:
        """Return the tokens."""
        return batch[1].numel()

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> None:
        """Leave the window's gradient."""
        model.zero_grad(set_to_none=True)
        tokens = ctx.all_reduce_sum(sum(self.count(batch) for batch in batches))
        for place, batch in enumerate(batches):
            model.require_backward_grad_sync = place == len(batches) - 1
            loss: Tensor = self.loss_sum(model, batch) * self.scale(batches, tokens, ctx)
            loss.backward()  # type: ignore[no-untyped-call]

    def scale(self, batches: Sequence[Batch], tokens: int, ctx: Any) -> float:
        """Return the factor of every loss sum."""
        return float(ctx.world_size / tokens)


class LargeRankMean(Large):
    """Every rank divides by its own tokens."""

    name = "large-rank-mean"

    def scale(self, batches: Sequence[Batch], tokens: int, ctx: Any) -> float:
        """Return the factor of every loss sum."""
        return 1 / sum(self.count(batch) for batch in batches)
