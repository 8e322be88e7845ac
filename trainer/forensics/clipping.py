"""Gradient clipping, distinguished from a wrong weight: the factor changes from step to step, the norm does not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer.forensics.cells import Window
from trainer.forensics.system import System

CONSTANT = 1e-4
"""Norms of clipped gradients agree within this share; torch divides by the norm plus 1e-6."""
VARIES = 1e-3
"""Factors of clipped gradients differ by at least this share."""
ROUND = (1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
"""Leading digits of a norm that somebody would choose."""
SCALES = range(8, 25)
"""Powers of two that a loss scaler starts from or reaches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Clipping that was recognised."""

    name: str
    numbers: dict[str, float]
    windows: Sequence[Window]
    """Windows with the weights that were there before: known, or with a sum of 1."""
    hides_factors: bool = True
    """Whether the factor of clipping is not known, so that it hides any other factor."""


def clipping(systems: Sequence[System], windows: Sequence[Window], tolerance: float) -> Clip | None:
    """Return the clipping that explains why the sum of all weights changes from step to step, or None."""
    sums = [window.total_weight for window in windows]
    norms = [_norm(system) for system in systems]
    changed = [place for place, value in enumerate(sums) if not math.isclose(value, 1.0, rel_tol=10 * tolerance)]
    if len(changed) < 2 or not all(math.isfinite(value) and value > 0 for value in sums):
        return None
    factors = [sums[place] for place in changed]
    same = [norms[place] for place in changed]
    if max(factors) / min(factors) < 1 + VARIES or max(same) / min(same) > 1 + CONSTANT:
        return None
    if any(norm > max(same) * (1 + CONSTANT) for norm in norms):
        return None
    norm = max(same)
    scale = _scale(norm)
    numbers = {"norm": norm, "smallest_factor": min(factors), "largest_factor": max(factors)}
    return Clip(
        name="clipped_before_unscale" if scale else "clipped_gradients",
        numbers={**numbers, **({"loss_scale": scale, "max_norm": norm * scale} if scale else {})},
        windows=[_normalised(window, value) for window, value in zip(windows, sums, strict=True)],
    )


def _scale(norm: float) -> float:
    """Return the loss scale that turns an odd norm into a round one, or 0 if the norm is round itself or none does."""
    if _is_round(norm):
        return 0.0
    fitting = [2.0**power for power in SCALES if _is_round(norm * 2.0**power)]
    return min(fitting, key=lambda scale: abs(math.log(norm * scale)), default=0.0)


def _is_round(norm: float) -> bool:
    leading = norm / 10.0 ** math.floor(math.log10(norm))
    return any(math.isclose(leading, digit, rel_tol=1e-5) for digit in (*ROUND, 10.0))


def _norm(system: System) -> float:
    if system.step.norms:
        return max(system.step.norms)
    sides = [vectors.values() for vectors in system.step.observed]
    return max(math.sqrt(sum(float(value.double().square().sum()) for value in values)) for values in sides)


def _normalised(window: Window, total: float) -> Window:
    cells = (
        replace(cell, weight=cell.weight / total, padding_weight=cell.padding_weight / total, error=cell.error / total)
        for cell in window.cells
    )
    return Window(tuple(cells), window.world_size)
