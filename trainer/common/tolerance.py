"""The tolerance of a gradient: |g - ref| <= atol + rtol * |ref| for every component, in float64; NaN is outside."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def half_decades(lowest: int) -> tuple[float, ...]:
    """Return the edges of a histogram of errors, from 10 ** (lowest / 2) to 10 in half decades."""
    return tuple(10.0 ** (exponent / 2) for exponent in range(lowest, 3))


def limits(reference: Tensor, atol: float, rtol: float) -> Tensor:
    """Return the largest error that each component of a float64 reference allows."""
    return atol + rtol * reference.abs()


def outside(error: Tensor, limit: Tensor) -> Tensor:
    """Return which components are outside, bool."""
    return ~(error <= limit)  # written so that NaN is outside


def shares(error: Tensor, limit: Tensor) -> Tensor:
    """Return each error as a share of its limit: above 1 is outside, and no error is 0 even if the limit is."""
    return torch.where(error == 0, torch.zeros_like(error), error / limit)


def worst_place(values: Tensor) -> int:
    """Return the position of the largest value; NaN is larger than any number."""
    return int(torch.nan_to_num(values, nan=math.inf, posinf=math.inf).argmax())


def nan_last(value: float) -> float:
    """Return a number as a sort key: NaN is the largest."""
    return math.inf if math.isnan(value) else value


def binned(error: Tensor, edges: Sequence[float]) -> Tensor:
    """Return how many components are in each bin of `edges`, int64 [edges - 1].

    Smaller errors, including exact zeros, are in the first bin, larger ones in the last; NaN is in none.
    """
    inner = torch.tensor(edges[1:-1], dtype=torch.float64)
    return torch.bincount(torch.bucketize(error[~error.isnan()], inner, right=True), minlength=len(edges) - 1)
