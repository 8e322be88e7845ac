"""Weights of all parts by least squares from measured gradients, with a residual test and a bound on every error."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.forensics.system import Kind, System

ROUNDING = 1e-14
"""Relative error of a gradient in float64, where nothing else is known about its noise."""
WORST_CONDITION = 1e-2
"""Directions are kept down to this share of the strongest, whatever the noise."""
UNRELIABLE = 1e-2
"""A weight whose error may exceed this share of the largest weight counts as not determined."""
QUIET = 1e-2
"""Parameters with a gradient below this share of the tolerance, relative to the whole gradient, say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Weights of some columns of a system in every rank's gradient of some parameters."""

    places: Sequence[int]
    """Positions of the columns in the system."""
    weights: Tensor
    """[places, ranks]; of columns that cannot be distinguished, the smallest ones that give the gradient."""
    errors: Tensor
    """[places, ranks], absolute; infinite where the weight is not determined."""
    determined: Tensor
    """[places], bool."""
    directions: Tensor
    """[rank, places]: what is known, as combinations of weights."""
    shares: Tensor
    """[parameters, ranks]: residual of each parameter relative to the gradients in it."""
    residual: float
    """Norm of the residual relative to that of the gradient, the largest over ranks."""
    redundancy: int
    """Components beyond those that determine the weights: with none, no residual could show."""

    @property
    def rank(self) -> int:
        """How many independent combinations of weights are known."""
        return int(self.directions.shape[0])


def solve(system: System, names: Sequence[str], kinds: Sequence[Kind], tolerance: float) -> Fit:
    """Return the weights of the columns of `kinds` in the gradients of the parameters `names`.

    Columns are scaled to norm 1. Directions that are so weak that the noise of the gradients, magnified, exceeds
    `tolerance` are left out, and the weights that need them are marked as not determined.
    """
    places = system.places(kinds)
    columns, sides = system.matrix(names, places)
    scales = torch.linalg.vector_norm(columns, dim=0)
    scales = torch.where(scales > 0, scales, torch.ones_like(scales))
    left, strengths, right = torch.linalg.svd(columns / scales, full_matrices=False)
    sizes = torch.linalg.vector_norm(sides, dim=0)
    top = float(strengths[0]) if len(strengths) else 0.0
    usable = strengths > max(top, 1e-300) * ROUNDING * 10
    basis = left[:, usable]
    rest = sides - basis @ (basis.T @ sides)
    norm = max(system.norm, 1e-300)
    residual = torch.linalg.vector_norm(rest, dim=0) / sizes.clamp(min=QUIET * tolerance * norm)
    noise = max(float(residual.max()), ROUNDING)
    kept = strengths > top * min(max(noise / tolerance, ROUNDING * 10), WORST_CONDITION)
    inverse = (right[kept].T / strengths[kept]) / scales[:, None]  # [places, rank]
    weights = inverse @ (left[:, kept].T @ sides)
    errors = noise * torch.linalg.vector_norm(inverse, dim=1)[:, None] * sizes[None, :]
    hidden = 1 - torch.linalg.vector_norm(right[kept], dim=0) ** 2
    largest = weights.abs().max() if weights.numel() else torch.tensor(0.0)
    determined = (hidden < 1e-6) & (errors <= UNRELIABLE * largest).all(dim=1)
    errors = torch.where(determined[:, None], errors, torch.full_like(errors, torch.inf))
    return Fit(
        places=places,
        weights=weights,
        errors=errors,
        determined=determined,
        directions=right[kept] * scales,
        shares=shares(system, names, places, weights, tolerance),
        residual=min(1.0, float(residual.max())),
        redundancy=sum(system.rows[name] for name in names) - int(kept.sum()),
    )


def shares(system: System, names: Sequence[str], places: Sequence[int], weights: Tensor, tolerance: float) -> Tensor:
    """Return what `weights` [places, ranks] leave of each parameter's gradient, relative to the gradients in it.

    Parameters whose gradients are too small to say anything have share 0 unless what is left is large itself.
    """
    found = []
    floor = max(QUIET * tolerance * system.norm, 1e-300)
    for name in names:
        block = system.blocks[name]
        columns, sides = block[:, list(places)], block[:, len(system.columns) :]
        rest = torch.linalg.vector_norm(columns @ weights - sides, dim=0)
        inside = torch.linalg.vector_norm(columns, dim=0) @ weights.abs()
        size = torch.maximum(torch.linalg.vector_norm(sides, dim=0), inside)
        found.append(rest / size.clamp(min=floor))
    return torch.stack(found) if found else torch.zeros(0, system.ranks, dtype=torch.float64)


def fits(fit: Fit, tolerance: float) -> bool:
    """Return whether the weights leave nothing of any parameter's gradient on any rank."""
    return bool((fit.shares <= tolerance).all())
