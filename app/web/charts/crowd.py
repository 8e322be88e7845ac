"""Charts of many ranks: the range of all lines, and the lines that differ most, instead of one line per rank."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from app.formats import many
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
    values = [floats(line["y"]) for line in lines]
    section = _sections(lines)
    cells: Cells = {}
    for line, numbers in zip(lines, values, strict=True):
        for at, value in zip(line["x"], numbers, strict=True):
            if math.isfinite(value):
                cells.setdefault(section[at], []).append(value)
    steps = sorted(cells)
    middle = {at: median(cells[at]) for at in steps}
    whole = [
        {"name": f"{name} of {len(lines):,}", "x": steps, "y": [function(cells[at]) for at in steps]}
        for name, function in RANGE.items()
    ]
    away = [_oddness(line, numbers, section, middle) for line, numbers in zip(lines, values, strict=True)]
    places = sorted((place for place in range(len(lines)) if any(away[place])), key=lambda place: away[place])
    odd = [lines[place] for place in reversed(places[-ODD_LINES:])]
    own = [line for line in lines if line["name"] == chosen and line not in odd]
    words = f"{len(lines):,} lines: lowest, median and highest value"
    words += f", and the {many(len(odd), 'line')} furthest from the median." if odd else "; all lines are equal."
    return [*whole, *odd, *own], words


def _sections(lines: Sequence[Line]) -> dict[float, float]:
    """Return the first step of the section of every step; of few steps, each is a section."""
    steps = sorted({at for line in lines for at in line["x"]})
    most = min(SECTIONS, len(steps))
    return {
        at: steps[place * len(steps) // most]
        for place in range(most)
        for at in steps[place * len(steps) // most : (place + 1) * len(steps) // most]
    }


def _oddness(
    line: Line, numbers: Sequence[float], section: Mapping[float, float], middle: Mapping[float, float]
) -> tuple[bool, float]:
    """Return whether a line has values that are not finite, and its mean distance from the median."""
    apart = [
        abs(value - middle[section[at]]) for at, value in zip(line["x"], numbers, strict=True) if math.isfinite(value)
    ]
    broken = len(apart) < len(numbers) - sum(value is None for value in line["y"])
    return broken, sum(apart) / len(apart) if apart else 0.0
