"""Batches of prepared images on a device: unchanged for evaluation, cropped and flipped for training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS, INPUT_SIZE

PADDING: Final = 4
"""Black pixels added around an image before it is cropped back to its size."""


class ImageSplit:
    """One split. On a GPU the whole split is in GPU memory; on the CPU the ranks share the memory-mapped file."""

    def __init__(self, images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], device: torch.device) -> None:
        self._images, self._device = images, device
        self.labels = torch.from_numpy(np.array(labels)).to(device)
        self._resident = torch.from_numpy(np.array(images)).to(device) if device.type == "cuda" else None

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, ids: Sequence[int] | npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return images (B, 32, 32, 3) uint8 and labels (B,) int64."""
        if self._resident is not None:
            places = torch.as_tensor(ids, device=self._device)
            return self._resident[places], self.labels[places]
        # NumPy gathers from the mapped file into fresh memory; torch then shares that memory.
        pixels = torch.from_numpy(np.take(self._images, ids, axis=0))
        return pixels, self.labels[torch.as_tensor(ids)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Views:
    """Random crops and flips of a batch, drawn on the CPU so that every device sees the same ones."""

    top: Tensor
    """First row of the crop in the padded image, (B,) int64 in 0..8."""
    left: Tensor
    """First column of the crop, as above."""
    flip: Tensor
    """Whether the crop is mirrored left to right, (B,) bool."""

    @classmethod
    def draw(cls, count: int, generator: torch.Generator) -> "Views":
        """Draw views for `count` images."""
        corners = torch.randint(0, 2 * PADDING + 1, (2, count), generator=generator)
        flip = torch.rand(count, generator=generator) < 0.5
        return cls(top=corners[0], left=corners[1], flip=flip)

    def as_bytes(self) -> bytes:
        """Return all draws as bytes, for a digest."""
        return torch.stack([self.top, self.left, self.flip.long()]).numpy().tobytes()


def cropped(images: Tensor, views: Views) -> Tensor:
    """Return `images` (B, 32, 32, 3) padded with black, cropped and mirrored according to `views`; same shape."""
    side = torch.arange(INPUT_SIZE)
    rows = views.top[:, None] + side
    columns = torch.where(views.flip[:, None], side.flip(0), side) + views.left[:, None]
    padded = torch.nn.functional.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    width = INPUT_SIZE + 2 * PADDING
    # One gather over whole pixels; indexing with three tensors is several times slower on the CPU.
    places = torch.arange(len(images))[:, None, None] * width * width + rows[:, :, None] * width + columns[:, None, :]
    flat = padded.view(-1, images.shape[-1])
    return flat.index_select(0, places.view(-1).to(images.device)).view(images.shape)


def normalised(images: Tensor) -> Tensor:
    """Return uint8 images (B, 32, 32, 3) as normalised float (B, 3, 32, 32) in channels-last memory."""
    means = torch.tensor(CHANNEL_MEANS, device=images.device) * 255
    deviations = torch.tensor(CHANNEL_DEVIATIONS, device=images.device) * 255
    # The stored order is already channels-last: permuting copies nothing.
    return ((images.float() - means) / deviations).permute(0, 3, 1, 2)
