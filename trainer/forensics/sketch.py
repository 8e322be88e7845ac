"""One linear map per parameter from a gradient to a short vector: the same for all parts, ranks and processes.

A sum of gradients has the sum of their sketches, so weights solved from sketches are those of the gradients. Every
component is multiplied by +1 or -1, by a generator seeded with the parameter's name, and components a fixed odd number
of places apart are added up. Nothing has to be stored or sent. Small parameters stay as they are.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 20
"""Components mapped at a time: bounds the memory, whatever the size of a parameter."""
BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Maps gradients to at most `buckets` numbers per parameter."""

    buckets: int
    """More than the number of columns that are solved for, or weights cannot be distinguished."""
    seed: int = 0

    def of(self, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sketch of every tensor, float64 on the CPU, flattened; [buckets] at most."""
        return {name: self.tensor(name, value) for name, value in gradient.items()}

    def tensor(self, name: str, value: Tensor) -> Tensor:
        """Return the sketch of one tensor. `name` selects the map."""
        flat = value.detach().reshape(-1)
        if flat.numel() <= self.buckets:
            return flat.to(device="cpu", dtype=torch.float64).clone()
        # An odd number of buckets, so that the columns of a matrix do not fall into one bucket each.
        width = self.buckets - 1 + self.buckets % 2
        chunk = max(1, CHUNK // width) * width
        generator = torch.Generator().manual_seed(self._key(name))
        found = torch.zeros(width, dtype=torch.float64)
        for start in range(0, flat.numel(), chunk):
            part = flat[start : start + chunk].to(device="cpu", dtype=torch.float64)
            signed = torch.nn.functional.pad(part * _signs(part.numel(), generator), (0, -part.numel() % width))
            found += signed.view(-1, width).sum(dim=0)
        return found

    def _key(self, name: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.seed}/{name}".encode()).digest()[:7], "little")


def _signs(count: int, generator: torch.Generator) -> Tensor:
    """Return `count` random signs as float64, 64 of them from each random number."""
    words = torch.randint(-(2**63), 2**63 - 1, (-(-count // BITS), 1), generator=generator, dtype=torch.int64)
    bits = (words >> torch.arange(BITS)) & 1
    return (1 - 2 * bits).view(-1)[:count].double()
