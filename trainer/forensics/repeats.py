"""Recognises a micro-batch that was processed twice: its weights are twice what a hypothesis gives, all others fit."""

import math
from collections.abc import Mapping, Sequence

from trainer.forensics.cells import Cell, Window, total
from trainer.forensics.hypotheses import Hypothesis, Key, hypotheses, key_of


def repeated(windows: Sequence[Window], tolerance: float, usual: int | None) -> list[Key]:
    """Return the hypotheses that explain every window if a micro-batch, of one rank or of all, is processed twice."""
    common: dict[Key, None] | None = None
    for window in windows:
        mine: dict[Key, None] = {}
        for item in hypotheses(window, usual_micro_batches=usual):
            where = _doubled(item, window, tolerance)
            if where is not None:
                names, told = key_of(item)
                mine[names | {"repeated_samples"}, tuple(sorted({**dict(told), **where}.items()))] = None
        common = mine if common is None else {key: None for key in common if key in mine}
        if not common:
            return []
    return list(common or {})


def _doubled(item: Hypothesis, window: Window, tolerance: float) -> Mapping[str, float] | None:
    """Return which micro-batch has twice the weight that the hypothesis gives it, if it is the only difference."""
    cells = window.counted
    if len(cells) < 2 or not all(item.shape):
        return None
    ratios: list[float] = []
    for cell, shape in zip(cells, item.shape, strict=True):
        ratios.append(cell.weight / (item.scale * shape))
        if not any(_near(ratios[-1], factor * ratios[0], cell, tolerance) for factor in (1.0, 2.0, 0.5)):
            return None
    least = min(ratios, key=abs)
    twice = [cell for cell, ratio in zip(cells, ratios, strict=True) if _near(ratio, 2 * least, cell, tolerance)]
    if not twice or len(twice) == len(cells) or len({cell.micro_batch for cell in twice}) > 1:
        return None
    column = [cell for cell in cells if cell.micro_batch == twice[0].micro_batch]
    if len(twice) > 1 and len(twice) < len(column):
        return None
    if not any(_near(least, value, twice[0], tolerance) for value in _scales(item, twice)):
        return None
    rank = {"rank": float(twice[0].rank)} if len(twice) == 1 else {}
    return {"micro_batch": float(twice[0].micro_batch), **rank}


def _scales(item: Hypothesis, twice: Sequence[Cell]) -> Sequence[float]:
    """Return how much smaller all weights are: not at all, or because the repeated units are counted as well."""
    if max(item.shape) > min(item.shape) * (1 + 1e-12):
        return (1.0,)
    whole = 1 / item.shape[0]
    return (1.0, whole / (whole + total(twice)))


def _near(ratio: float, wanted: float, cell: Cell, tolerance: float) -> bool:
    error = cell.error / abs(cell.weight) * abs(ratio) if cell.weight else 0.0
    return math.isclose(ratio, wanted, rel_tol=2 * tolerance, abs_tol=error)
