"""Compares gradients component by component: every component of every rank against the reference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from trainer.common import tolerance
from trainer.common.tolerance import binned, half_decades, limits, nan_last, shares, worst_place

EDGES: Final = half_decades(-26)
"""Half decades from 1e-13 to 10; smaller errors, including exact zeros, are counted in the first bin."""

Gradients = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorError:
    """Errors of one parameter tensor, the worst over ranks."""

    name: str
    components: int
    max_abs_error: float
    """Largest |g - ref|; NaN when any component is NaN."""
    share: float
    """Largest error as a share of its limit; above 1 is outside."""
    outside: int
    """Components outside the tolerance on at least one rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component of a gradient, the worst over ranks."""

    tensor: str
    error: float
    limit: float

    @property
    def order(self) -> float:
        """The error as a sort key: NaN is the largest."""
        return nan_last(self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Errors of a whole gradient."""

    tensors: list[TensorError]
    histogram: list[int]
    """Components per bin of EDGES, by their worst error over ranks; NaN is in no bin."""
    max_abs_error: float
    limit: float
    """Limit at the component with the largest error."""
    worst: str
    """Name of the tensor that holds it."""
    outside: Component | None
    """The largest error outside its limit; a larger error may be within its own limit where the reference is larger."""
    ratios: list[float]
    """Per rank, the factor f that brings f * ref closest to g (least squares)."""
    cosines: list[float]
    """Per rank, the cosine of the angle between g and ref."""

    @property
    def components(self) -> int:
        """Components compared on every rank."""
        return sum(tensor.components for tensor in self.tensors)

    @property
    def violations(self) -> int:
        """Components outside on at least one rank."""
        return sum(tensor.outside for tensor in self.tensors)


def compare(reference: Gradients, ranks: Sequence[Gradients], *, atol: float, rtol: float) -> Comparison:
    """Compare every rank's gradient with `reference`: in tolerance if |g - ref| <= atol + rtol * |ref|, in float64.

    Ranks are never averaged: that would hide a missing or misplaced reduction. Raises ValueError if the tensors of a
    rank differ from those of the reference.
    """
    for rank, gradients in enumerate(ranks):
        if gradients.keys() != reference.keys():
            raise ValueError(
                f"rank {rank}: gradients missing or unexpected: {sorted(gradients.keys() ^ reference.keys())}"
            )
    histogram = torch.zeros(len(EDGES) - 1, dtype=torch.int64)
    tensors: list[TensorError] = []
    largest = Component(tensor="", error=-1.0, limit=atol)
    outside: Component | None = None
    for name, expected in reference.items():
        error, bound = _errors(expected, [gradients[name] for gradients in ranks], atol, rtol)
        tensors.append(_tensor_error(name, error, bound))
        histogram += binned(error, EDGES)
        largest = _larger(largest, name, error, bound)
        beyond = tolerance.outside(error, bound)
        if bool(beyond.any()):
            outside = _larger(outside, name, error[beyond], bound[beyond])
    ratios, cosines = _directions(reference, ranks)
    return Comparison(
        tensors=tensors,
        histogram=[int(count) for count in histogram],
        max_abs_error=_max([tensor.max_abs_error for tensor in tensors]),
        limit=largest.limit,
        worst=largest.tensor,
        outside=outside,
        ratios=ratios,
        cosines=cosines,
    )


def _errors(expected: Tensor, found: Sequence[Tensor], atol: float, rtol: float) -> tuple[Tensor, Tensor]:
    # [components] each; torch.maximum propagates NaN, so a component that is NaN on any rank stays NaN.
    reference = expected.double().flatten()
    error = torch.zeros_like(reference)
    for gradient in found:
        error = torch.maximum(error, (gradient.double().flatten() - reference).abs())
    return error, limits(reference, atol, rtol)


def _larger(known: Component | None, name: str, error: Tensor, bound: Tensor) -> Component:
    place = worst_place(error)
    found = Component(tensor=name, error=float(error[place]), limit=float(bound[place]))
    return known if known is not None and known.order >= found.order else found


def _tensor_error(name: str, error: Tensor, bound: Tensor) -> TensorError:
    share = shares(error, bound)
    return TensorError(
        name=name,
        components=error.numel(),
        max_abs_error=float(error.max()),
        share=float(share.max()),
        outside=int(tolerance.outside(error, bound).sum()),
    )


def _max(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _directions(reference: Gradients, ranks: Sequence[Gradients]) -> tuple[list[float], list[float]]:
    expected = _flat(reference)
    norm = float(expected.norm())
    ratios, cosines = [], []
    for gradients in ranks:
        found = _flat(gradients)
        dot, length = float(expected @ found), float(found.norm())
        ratios.append(dot / norm**2 if norm else math.nan)
        cosines.append(dot / (norm * length) if norm and length else math.nan)
    return ratios, cosines


def _flat(gradients: Gradients) -> Tensor:
    return torch.cat([gradients[name].double().flatten() for name in sorted(gradients)])
