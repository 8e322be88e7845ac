"""Private torch operators in one place: why each is needed, and what happens without it."""

from typing import Any

import torch
from torch import Tensor

Shape = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
"""Padding, stride, dilation and groups of a convolution."""


def mkldnn_available() -> bool:
    """Return whether this torch was built with oneDNN."""
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def pack_convolution(weight: Tensor, shape: Shape) -> Tensor | None:
    """Return the weight of a convolution packed for oneDNN, None if this torch has no operators for it.

    The public `torch.utils.mkldnn` converts whole modules and their inputs; `torch.mkldnn_convolution` packs the weight
    at every call, which gives the same bits but takes a sixth more time.
    """
    pack = _operator("_reorder_convolution_weight")
    if pack is None or _operator("_convolution_pointwise") is None:
        return None
    with torch.inference_mode():
        packed: Tensor = pack(weight, *shape, None)
    return packed


def packed_convolution(images: Tensor, packed: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """Return the convolution of `images` (B, C, H, W) with the packed weight from `pack_convolution`."""
    result: Tensor = torch.ops.mkldnn._convolution_pointwise(images, packed, bias, *shape, "none", [], "")
    return result


def _operator(name: str) -> Any:
    return getattr(torch.ops.mkldnn, name, None) if mkldnn_available() else None
