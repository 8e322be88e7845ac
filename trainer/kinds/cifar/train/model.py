"""The convolutional network of this kind: 558,538 parameters for ten classes."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.common.model_file import ModelHeader
from trainer.common.networks import PooledConvolutions

WIDTHS: Final = (64, 128, 256)
"""Output channels of the three blocks."""


class CifarNet(PooledConvolutions):
    """3x3 convolutions 3-64-64, pool, 128-128, pool, 256, each with BatchNorm and ReLU; global average pool; linear.

    Input (B, 3, H, W) float, output (B, classes) logits. H and W are 32 in training; any size from 4 on works.
    """

    def __init__(self, classes: int = 10, *, activation_checkpointing: bool = False) -> None:
        first, second, third = WIDTHS
        blocks = [
            nn.Sequential(*_convolution(3, first), *_convolution(first, first), nn.MaxPool2d(2)),
            nn.Sequential(*_convolution(first, second), *_convolution(second, second), nn.MaxPool2d(2)),
            nn.Sequential(*_convolution(second, third)),
        ]
        super().__init__(blocks, nn.Linear(third, classes))
        self.activation_checkpointing = activation_checkpointing
        """Keep only each block's input during training and recompute the rest in the backward pass."""

    def run_block(self, block: nn.Module, features: Tensor) -> Tensor:
        """Return the output of `block` for `features`, with its activations kept or recomputed."""
        if not (self.activation_checkpointing and self.training):
            return super().run_block(block, features)

        def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
            return nullcontext(), statistics_kept(block)

        recomputed: Tensor = checkpoint(block, features, use_reentrant=False, context_fn=contexts)
        return recomputed


def from_header(header: ModelHeader) -> CifarNet:
    """Return a network that fits the weights of a model file with this header."""
    return CifarNet(len(header.classes))


@contextmanager
def statistics_kept(block: nn.Module) -> Iterator[None]:
    """Run BatchNorm layers without updating their running statistics: a second forward pass must not count twice."""
    layers = [layer for layer in block.modules() if isinstance(layer, nn.BatchNorm2d)]
    saved = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
        layer.num_batches_tracked = None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, counter) in zip(layers, saved, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, counter


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]
