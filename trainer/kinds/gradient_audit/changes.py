"""What the code under audit does to gradients between a backward pass and the next: nothing, one factor, or more."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Share of a norm by which one factor may miss the norms and sums of single gradients."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Norm and sum of one gradient: one factor multiplies both."""

    norm: float
    total: float
    components: int


class Changes:
    """Compares the gradients of `parameters` before and after the code that follows each backward pass."""

    def __init__(self, parameters: Iterable[Tensor], dtype: torch.dtype) -> None:
        self._parameters = list(enumerate(parameters))
        self._rounding = ROUNDING.get(dtype, 1e-2)
        self._left: Mapping[int, Sizes] | None = None
        self.found: list[tuple[float | None, float]] = []
        """Per backward pass: the factor (None: not one factor), and the norm of all gradients afterwards."""

    def begin(self) -> None:
        """Forget everything seen so far."""
        self._left, self.found = None, []

    def open(self) -> None:
        """Note the gradients that a backward pass left."""
        self._left = self._sizes()

    def close(self) -> None:
        """Note what has become of the gradients since `open`; does nothing before the first backward pass."""
        if self._left is None:
            return
        now = self._sizes()
        norm = math.hypot(*(size.norm for size in now.values()))
        self.found.append((_factor(self._left, now, self._rounding), norm))
        self._left = None

    def _sizes(self) -> Mapping[int, Sizes]:
        found = {
            place: (torch.stack([torch.linalg.vector_norm(value), value.sum()]), value.numel())
            for place, parameter in self._parameters
            if (value := parameter.grad) is not None
        }
        sizes = {}
        for place, (pair, components) in found.items():
            norm, total = pair.double().tolist()
            sizes[place] = Sizes(norm, total, components)
        return sizes


def _factor(left: Mapping[int, Sizes], now: Mapping[int, Sizes], rounding: float) -> float | None:
    """Return the one number by which all of `left` were multiplied to give `now`, or None."""
    nothing = Sizes(0.0, 0.0, 0)
    if not all(math.isfinite(size.norm) for size in (*left.values(), *now.values())):
        return None
    largest = max(left, key=lambda place: left[place].norm, default=None)
    if largest is None or not left[largest].norm:
        return 1.0 if all(not size.norm for size in now.values()) else None
    factor = now.get(largest, nothing).norm / left[largest].norm
    if left[largest].total * now.get(largest, nothing).total < 0:
        factor = -factor
    for place in left.keys() | now.keys():
        old, new = left.get(place, nothing), now.get(place, nothing)
        near = rounding * max(1.0, abs(factor)) * old.norm
        if abs(new.norm - abs(factor) * old.norm) > near:
            return None
        if abs(new.total - factor * old.total) > near * math.sqrt(max(1, old.components)):
            return None
    return 1.0 if math.isclose(factor, 1.0, rel_tol=rounding) else factor
