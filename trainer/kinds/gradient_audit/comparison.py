"""Compares a gradient component by component with a reference: |g - ref| <= atol + rtol * |ref|, in float64."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import torch
from torch import Tensor

from trainer.common.tolerance import binned, half_decades, limits, nan_last, outside, shares, worst_place

EDGES: Final = half_decades(-34)
"""Half decades from 1e-17 to 10; smaller errors, including exact zeros, are counted in the first bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """Errors of one parameter."""

    name: str
    components: int
    max_abs_error: float
    """Largest |g - ref|; NaN when any component is NaN."""
    share: float
    """Largest error as a share of its limit; above 1 is outside, NaN too."""
    error: float
    """Error of the component with the largest share."""
    limit: float
    """Its limit."""
    outside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Errors of a whole gradient, or the worst over several ranks and steps."""

    tensors: list[TensorError]
    histogram: list[int]
    """Components per bin of EDGES; NaN is in no bin."""

    @property
    def worst(self) -> TensorError:
        """The parameter with the largest share."""
        return max(self.tensors, key=lambda item: nan_last(item.share))

    @property
    def components(self) -> int:
        """Components compared."""
        return sum(item.components for item in self.tensors)

    @property
    def outside(self) -> int:
        """Components outside the tolerance."""
        return sum(item.outside for item in self.tensors)

    @property
    def max_abs_error(self) -> float:
        """The largest error; NaN when any is NaN."""
        return max((item.max_abs_error for item in self.tensors), key=nan_last)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return what `document` wrote."""
        return cls(tensors=[TensorError(**item) for item in document["tensors"]], histogram=list(document["histogram"]))


def compare(expected: Mapping[str, Tensor], found: Callable[[str], Tensor], *, atol: float, rtol: float) -> Comparison:
    """Compare gradients by parameter name. `found` is called once per parameter, in the order of `expected`."""
    histogram, tensors = torch.zeros(len(EDGES) - 1, dtype=torch.int64), []
    for name, reference in expected.items():
        size = reference.double().flatten()
        error = (found(name).double().flatten() - size).abs()
        limit = limits(size, atol, rtol)
        tensors.append(_tensor_error(name, error, limit))
        histogram += binned(error, EDGES)
    return Comparison(tensors=tensors, histogram=[int(count) for count in histogram])


def merged(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the worst of each parameter over several comparisons, and the sum of their histograms."""
    columns = zip(*(item.tensors for item in comparisons), strict=True)
    return Comparison(
        tensors=[max(column, key=lambda item: (nan_last(item.share), item.outside)) for column in columns],
        histogram=[sum(bins) for bins in zip(*(item.histogram for item in comparisons), strict=True)],
    )


def _tensor_error(name: str, error: Tensor, limit: Tensor) -> TensorError:
    if not error.numel():
        return TensorError(name=name, components=0, max_abs_error=0.0, share=0.0, error=0.0, limit=0.0, outside=0)
    share = shares(error, limit)
    place = worst_place(share)
    return TensorError(
        name=name,
        components=error.numel(),
        max_abs_error=float(error.max()),
        share=float(share[place]),
        error=float(error[place]),
        limit=float(limit[place]),
        outside=int(outside(error, limit).sum()),
    )
