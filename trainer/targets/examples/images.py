"""Example: a plain image classifier on batches of equal size, where the mean of means is right."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trainer.targets.examples.small_models import ImageNetwork

Batch = tuple[Tensor, Tensor]


class ImageClassifier:
    """A plain image classifier on batches of equal size."""

    name = "image-classifier"
    unit = "image"

    def build_model(self) -> nn.Module:
        """Return the network."""
        return ImageNetwork()

    def window(self, step: int, rank: int, world_size: int) -> list[Batch]:
        """Return two batches of eight images with their classes."""
        draw = torch.Generator().manual_seed(1000 * step + rank)
        return [(torch.randn(8, 3, 16, 16, generator=draw), torch.randint(10, (8,), generator=draw)) for _ in range(2)]

    def loss_sum(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the sum of the losses of all images."""
        images, classes = batch
        return functional.cross_entropy(model(images), classes, reduction="sum")

    def count(self, batch: Batch) -> int:
        """Return the images."""
        return len(batch[1])

    def accumulate(self, model: Any, batches: Sequence[Batch], ctx: Any) -> float:
        """Leave the mean gradient: means of equal batches, divided by their number; report the window's loss."""
        model.zero_grad(set_to_none=True)
        total = 0.0
        for place, (images, classes) in enumerate(batches):
            with nullcontext() if place == len(batches) - 1 else model.no_sync():
                loss: Tensor = functional.cross_entropy(model(images), classes) / len(batches)
                loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        mean: float = ctx.all_reduce_sum(total) / ctx.world_size
        return mean
