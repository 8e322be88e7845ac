"""An image classifier prepared for inference: the same numbers for an image alone and in a batch."""

from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from trainer.common.model_file import ImageModel, ModelFileRefused
from trainer.common.networks import SHAPE, PooledConvolutions
from trainer.common.torch_operators import mkldnn_available, pack_convolution, packed_convolution

BATCHES: Final = (8, 4, 2, 1)
"""Allowed batch sizes: only a few, because the convolution library needs set-up for every new one."""
MKLDNN: Final = mkldnn_available()
LIBRARY_SHAPE: Final = SHAPE[1:]
"""Padding, stride, dilation and groups, as expected by the library."""
SAME_LOGITS: Final = 1e-9
"""Tolerance for float64 rounding in a batch; a single different bit in a convolution changes a hundred times more."""


class Convolution(nn.Module):
    """A 3x3 convolution that takes the same code path for one image as for many.

    torch uses a different implementation for a single small image than for a batch, which differs in the last bits. If
    torch supports it, the weights are packed once instead of at every call: same bits, a sixth less time.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.layer = layer
        self._packed = pack_convolution(layer.weight, LIBRARY_SHAPE) if MKLDNN else None

    def forward(self, images: Tensor) -> Tensor:
        """Return what `layer` returns for (B, C, H, W)."""
        layer = self.layer
        if self._packed is not None:
            result = packed_convolution(images, self._packed, layer.bias, LIBRARY_SHAPE)
        elif MKLDNN:
            result = torch.mkldnn_convolution(images, layer.weight, layer.bias, *LIBRARY_SHAPE)
        else:
            result = layer(images)
        return result


class Pooled(nn.Module):
    """A `PooledConvolutions` prepared for inference: BatchNorm folded into the convolutions, channels last.

    Pooling and the linear layer run in float64, where the order of a sum, which depends on the batch size, has no
    visible effect.
    """

    def __init__(self, network: PooledConvolutions) -> None:
        super().__init__()
        folded = nn.Sequential(*(_folded(block) for block in network.blocks))
        self._blocks = folded.to(memory_format=torch.channels_last)
        self._head = network.head.double()

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes), float64, of `images` (B, 3, H, W)."""
        features = self._blocks(images.contiguous(memory_format=torch.channels_last))
        logits: Tensor = self._head(features.double().mean((2, 3)))
        return logits


class Answerer:
    """One model, prepared for inference in FP32 and evaluation mode, with the same numbers alone and in a batch.

    Raises ModelFileRefused for a network that does not map images to one number per class.
    """

    def __init__(self, model: ImageModel) -> None:
        network = model.network
        self.classes, self.sha256 = list(model.classes), model.sha256
        self._pooled = isinstance(network, PooledConvolutions)
        self._network = (Pooled(network) if isinstance(network, PooledConvolutions) else network.float()).eval()
        # (pixel / 255 - mean) / deviation as one multiplication and one addition per channel
        deviations = torch.tensor(model.channel_deviations, dtype=torch.float64)
        means = torch.tensor(model.channel_means, dtype=torch.float64)
        self._scale = (1 / (255 * deviations)).float()
        self._shift = (-means / deviations).float()
        self._size = model.input_size
        try:
            self.batches = self._exact_batches()
        except Exception as error:  # a kind's own network: the file is rejected and the process continues
            raise ModelFileRefused(f"its network fails on images: {error}") from error

    def probabilities(self, pictures: list[bytes]) -> list[list[float]]:
        """Return the class probabilities of each image (32 x 32 x 3 bytes), each summing to 1."""
        rows: list[list[float]] = []
        while len(rows) < len(pictures):
            left = len(pictures) - len(rows)
            size = next(size for size in self.batches if size <= left)
            rows += self.logits(pictures[len(rows) : len(rows) + size]).softmax(1).tolist()
        return rows

    def logits(self, pictures: list[bytes]) -> Tensor:
        """Return the logits (B, classes), float64, of one batch."""
        with torch.inference_mode():
            flat = torch.frombuffer(bytearray(b"".join(pictures)), dtype=torch.uint8)
            pixels = flat.view(len(pictures), self._size, self._size, 3)
            images = (pixels * self._scale + self._shift).permute(0, 3, 1, 2)  # already channels last in memory
            logits: Tensor = self._network(images if self._pooled else images.contiguous())
            if logits.shape != (len(pictures), len(self.classes)):
                raise ValueError(f"logits of shape {tuple(logits.shape)}, not {(len(pictures), len(self.classes))}")
            return logits.double()

    def _exact_batches(self) -> tuple[int, ...]:
        """Return the batch sizes that give the same numbers as a single image on this machine."""
        largest, generator = BATCHES[0], torch.Generator().manual_seed(0)
        noise = torch.randint(0, 256, (largest, self._size**2 * 3), dtype=torch.uint8, generator=generator)
        pictures = [row.numpy().tobytes() for row in noise]
        alone = torch.cat([self.logits([picture]) for picture in pictures])
        return tuple(
            size
            for size in BATCHES
            if size == 1 or bool((self.logits(pictures[:size]) - alone[:size]).abs().max() <= SAME_LOGITS)
        )


def _folded(block: nn.Module) -> nn.Sequential:
    """Return a block (convolution, BatchNorm, ReLU, …) with every BatchNorm folded into the convolution before it."""
    layers: list[nn.Module] = []
    for layer in block.children():
        if isinstance(layer, nn.BatchNorm2d):
            convolution = cast("nn.Conv2d", layers.pop())
            layers.append(Convolution(fuse_conv_bn_eval(convolution, layer)))
        else:
            layers.append(layer)
    return nn.Sequential(*layers)
