"""Decides between BF16 autocast and FP32 by what the device can do; nothing is emulated in silence."""

import torch

from trainer.common.bf16 import computes_bf16
from trainer.common.distributed import Group


class PrecisionRefused(ValueError):
    """BF16 was asked for on a device without it."""


def refuse_missing_bf16(wanted: str, device: torch.device) -> None:
    """Raise PrecisionRefused when `wanted` is bf16 and `device` has none."""
    if wanted == "bf16" and not computes_bf16(device):
        raise PrecisionRefused(
            f"precision bf16 was asked for, but {device} does not compute in BF16; use precision auto or fp32"
        )


def agreed_precision(wanted: str, group: Group) -> str:
    """Return `bf16` or `fp32`, the same on every rank: `auto` is BF16 only where all ranks have it. Collective.

    Raises PrecisionRefused on all ranks together when BF16 was asked for and one rank has none.
    """
    missing = [not computes_bf16(group.device)] if wanted != "fp32" else [False]
    somewhere_missing = bool(group.max_integers(missing, "precision")[0])
    if wanted == "bf16" and somewhere_missing:
        raise PrecisionRefused("precision bf16 was asked for, but not every rank's device computes in BF16")
    return "fp32" if wanted == "fp32" or somewhere_missing else "bf16"
