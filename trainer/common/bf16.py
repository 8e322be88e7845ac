"""Whether a device supports BF16 natively; BF16 is never silently emulated."""

import time
from functools import cache
from typing import Final

import torch
from torch import nn

from trainer.common.machine import bf16_instructions
from trainer.common.torch_operators import mkldnn_available

ROUNDS: Final = 5
"""Measured steps per precision; the first is a warm-up."""


def computes_bf16(device: torch.device) -> bool:
    """Return whether `device` supports BF16 without emulation.

    On a CPU this depends on its instructions. If the system does not list them, a convolution is measured once:
    emulated BF16 is slower than FP32.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if not mkldnn_available():
        return False
    known = bf16_instructions()
    return bf16_is_faster() if known is None else known


@cache
def bf16_is_faster() -> bool:
    """Measure whether a training step of a small convolution takes less time in BF16 than in FP32."""
    return _seconds(torch.bfloat16) < _seconds(torch.float32)


def _seconds(dtype: torch.dtype) -> float:
    layer = nn.Conv2d(32, 32, 3, padding=1).to(memory_format=torch.channels_last)
    images = torch.ones(8, 32, 32, 32).to(memory_format=torch.channels_last)
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            layer(images).sum().backward()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
