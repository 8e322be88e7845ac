"""Seeds every generator that a target may use."""

import random
import sys

import torch


def seed_everything(seed: int) -> None:
    """Seed Python, torch on all devices, and NumPy if it is imported; the same on every rank."""
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
