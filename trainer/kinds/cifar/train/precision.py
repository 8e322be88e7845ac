"""Chooses BF16 autocast or FP32 according to the device; BF16 is never silently emulated."""

import torch

from trainer.common.bf16 import computes_bf16
from trainer.common.distributed import Group


class PrecisionRefused(ValueError):
    """BF16 was requested on a device without it."""


def refuse_missing_bf16(wanted: str, device: torch.device) -> None:
    """Raise PrecisionRefused if `wanted` is bf16 and `device` does not support it."""
    if wanted == "bf16" and not computes_bf16(device):
        raise PrecisionRefused(
            f"precision bf16 was requested, but {device} does not support BF16; use precision auto or fp32"
        )


def agreed_precision(wanted: str, group: Group) -> str:
    """Return `bf16` or `fp32`, the same on every rank: `auto` is BF16 only if all ranks support it. Collective.

    Raises PrecisionRefused on all ranks together if BF16 was requested and one rank does not support it.
    """
    missing = [not computes_bf16(group.device)] if wanted != "fp32" else [False]
    somewhere_missing = bool(group.max_integers(missing, "precision")[0])
    if wanted == "bf16" and somewhere_missing:
        raise PrecisionRefused("precision bf16 was requested, but not every rank's device supports BF16")
    return "fp32" if wanted == "fp32" or somewhere_missing else "bf16"
