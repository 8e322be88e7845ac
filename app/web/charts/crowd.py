"""Charts of many ranks: the range of all lines, and the lines that differ most, instead of one line per rank."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from app.web.charts.shapes import floats

MOST_LINES: Final = 32
"""Charts with more lines are summarised."""
ODD_LINES: Final = 4
"""Lines that are drawn on their own because they differ most."""
SECTIONS: Final = 150
"""Maximum number of points of a summarising line."""
RANGE: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {"lowest": min, "median": median, "highest": max}

Line = Mapping[str, Any]
Cells = dict[float, list[float]]
"""Finite values of all lines by the first step of their section."""


def summarised(lines: Sequence[Line], chosen: str | None = None) -> tuple[list[Line], str]:
    """Return lines that fit into one chart, and a sentence about them; few lines are returned as they are.

    Lines have a `name` and their own steps `x`. Those drawn individually are the ones with values that are not finite,
    then those furthest from the median, and the `chosen` one.
    """
    if len(lines) <= MOST_LINES:
        return list(lines), ""
    edges = _edges(lines)
    cells: Cells = {}
    for line in lines:
        for at, value in _finite(line):
            cells.setdefault(edges[bisect_right(edges, at) - 1], []).append(value)
    steps = sorted(cells)
    middle = {at: median(cells[at]) for at in steps}
    whole = [
        {"name": f"{name} of {len(lines):,}", "x": steps, "y": [function(cells[at]) for at in steps]}
        for name, function in RANGE.items()
    ]
    odd = sorted(lines, key=lambda line: _oddness(line, edges, middle), reverse=True)[:ODD_LINES]
    own = [line for line in lines if line["name"] == chosen and line not in odd]
    words = f"{len(lines):,} lines: lowest, median and highest value, and the {len(odd)} lines that differ most."
    return [*whole, *odd, *own], words


def _edges(lines: Sequence[Line]) -> list[float]:
    """Return where the sections of steps begin: at every step if there are few."""
    steps = sorted({at for line in lines for at in line["x"] if math.isfinite(at)})
    if len(steps) <= SECTIONS:
        return steps
    return [steps[place * len(steps) // SECTIONS] for place in range(SECTIONS)]


def _finite(line: Line) -> list[tuple[float, float]]:
    pairs = zip(line["x"], floats(line["y"]), strict=True)
    return [(at, value) for at, value in pairs if math.isfinite(value) and math.isfinite(at)]


def _oddness(line: Line, edges: Sequence[float], middle: Mapping[float, float]) -> tuple[bool, float]:
    """Return whether a line has values that are not finite, and its mean distance from the median."""
    found = _finite(line)
    broken = any(
        value is not None and not math.isfinite(number)
        for value, number in zip(line["y"], floats(line["y"]), strict=True)
    )
    away = sum(abs(value - middle[edges[bisect_right(edges, at) - 1]]) for at, value in found)
    return broken, away / len(found) if found else 0.0
