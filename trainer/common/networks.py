"""Networks with a known structure, which give the same bits for an image alone and in a batch."""

from typing import Any, Final

from torch import Tensor, nn

SHAPE: Final = ((3, 3), (1, 1), (1, 1), (1, 1), 1)
"""Kernel, padding, stride, dilation and groups."""


class PooledConvolutions(nn.Module):
    """Blocks of 3x3 convolutions, global average pool, linear head.

    Input (B, C, H, W) float, output (B, classes) logits. The classifier child folds BatchNorm into the convolutions
    before it and takes one code path for any number of images; other networks are used unchanged.
    Raises ValueError for a convolution of another shape.
    """

    def __init__(self, blocks: list[nn.Sequential], head: nn.Linear) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = head
        shapes = {_shape(layer) for layer in self.blocks.modules() if isinstance(layer, nn.Conv2d)}
        if shapes - {SHAPE}:
            raise ValueError(f"convolutions must have {SHAPE}, not {shapes - {SHAPE}}")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) of `images` (B, C, H, W)."""
        features = images
        for block in self.blocks:
            features = self.run_block(block, features)
        logits: Tensor = self.head(self.pool(features).flatten(1))
        return logits

    def run_block(self, block: nn.Module, features: Tensor) -> Tensor:
        """Return the output of `block` for `features`; a network may save memory here, but not change the result."""
        result: Tensor = block(features)
        return result


def _shape(layer: nn.Conv2d) -> tuple[Any, ...]:
    return layer.kernel_size, layer.padding, layer.stride, layer.dilation, layer.groups
