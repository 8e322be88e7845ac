"""Every random-generator state of one rank: Python, NumPy, torch on the CPU and on this rank's GPU."""

import random
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch


def capture_rng(device: torch.device) -> dict[str, Any]:
    """Return the states of this rank as plain values and CPU byte tensors.

    `cuda` is a list: the state of this rank's own GPU, or empty if it trains on the CPU. Other ranks save their
    GPUs' states.
    """
    # The legacy tuple is defined by NumPy: generator name, 624 words, position, and a cached normal draw.
    name, keys, position, has_gauss, cached = cast(tuple[str, Any, int, int, float], np.random.get_state(legacy=True))
    version, words, gauss = random.getstate()
    return {
        # As tensors: the serialiser would call back into Python for each of the 625 words.
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device)] if device.type == "cuda" else [],
    }


def restore_rng(states: Mapping[str, Any], device: torch.device) -> None:
    """Set what `capture_rng` returned.

    Raises KeyError for a missing state, ValueError for a state of another device.
    """
    if bool(states["cuda"]) != (device.type == "cuda"):
        raise ValueError(
            f"the checkpoint has {len(states['cuda'])} GPU generator states, this rank is on {device.type}"
        )
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    for state in states["cuda"]:
        torch.cuda.set_rng_state(state, device)


def rng_difference(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    """Return the names of states that are not bit-identical."""
    return [name for name in sorted(left.keys() | right.keys()) if not _same(left.get(name), right.get(name))]


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and bool(torch.equal(left, right))
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(_same(a, b) for a, b in zip(left, right, strict=True))
    return bool(left == right)
