"""Server-drawn SVG charts, complete without JavaScript: their elements, and histograms."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.formats import number
from app.web.charts.scales import Scale
from trainer.contract.events import decode_number

LEFT: Final = 58
RIGHT: Final = 712
TOP: Final = 10
BOTTOM: Final = 204
COLOURS: Final = 10
DASHES: Final = ("", "8 4", "2 3", "9 3 2 3", "4 2")
"""Dash patterns of lines, so that lines are distinguishable without colours; the first is solid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """The first non-finite value of a line."""

    at: float
    """Its position along the axis."""
    name: str
    """NaN or an infinity."""
    text: str
    """Line, value and step as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: unbroken pieces, as SVG point lists."""

    name: str
    colour: str
    dash: str
    pieces: list[str]
    dots: list[tuple[float, float]]
    """Isolated points between gaps."""
    odd: Odd | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The first values of a chart as a table."""

    columns: list[str]
    rows: list[list[Any]]
    steps: int
    """Number of rows of the complete table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of a histogram."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Everything a template needs to draw one chart."""

    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    y_note: str = ""
    values: Values | None = None


def floats(values: Sequence[Any]) -> list[float]:
    """Return numbers as floats; null and names of non-finite numbers become non-finite floats."""
    return [math.nan if value is None else float(decode_number(value) or 0.0) for value in values]


def ticks(scale: Scale, most: int) -> list[Tick]:
    """Return the labelled ticks of a scale."""
    return [
        Tick(at=scale(value), text=number(int(value) if value.is_integer() else value)) for value in scale.ticks(most)
    ]


def colour(index: int) -> str:
    """Return the colour class of the line or group with this index."""
    return f"c{index % COLOURS}"


def dash(index: int) -> str:
    """Return the dash pattern of the line with this index, in SVG notation."""
    return DASHES[index % len(DASHES)]


def histogram_chart(panel: Mapping[str, Any]) -> Chart:
    """Draw a `histogram` panel: groups side by side in every bin.

    On a logarithmic axis bins are drawn equally wide. Counts that span more than two decades are drawn on a logarithmic
    scale too, and the axis label says so.
    """
    groups = panel["groups"]
    edges = floats(panel["edges"])
    counts = [count for group in groups for count in group["counts"] if count > 0]
    most = max(counts, default=1)
    log_y = most > 100 * min(counts, default=1)
    y = Scale(low=0.7 if log_y else 0.0, high=float(most) * (1.3 if log_y else 1.05), start=BOTTOM, end=TOP, log=log_y)
    x = _bin_scale(edges, bool(panel.get("log_x")))
    bars = [bar for place in range(len(groups)) for bar in _bars(place, groups, edges, (x, y))]
    return Chart(
        x_ticks=_edge_ticks(edges, x),
        y_ticks=[tick for tick in ticks(y, 5) if "." not in tick.text],
        bars=bars,
        y_note="count (log scale)" if log_y else "count",
    )


def _bin_scale(edges: Sequence[float], log_x: bool) -> list[float]:
    """Return the position of every edge."""
    last = len(edges) - 1
    if log_x or not all(math.isfinite(edge) for edge in edges):
        return [round(LEFT + (RIGHT - LEFT) * index / max(last, 1), 1) for index in range(len(edges))]
    scale = Scale(low=edges[0], high=edges[-1], start=LEFT, end=RIGHT)
    return [scale(edge) for edge in edges]


def _bars(
    place: int, groups: Sequence[Mapping[str, Any]], edges: Sequence[float], axes: tuple[Sequence[float], Scale]
) -> list[Bar]:
    x, y = axes
    group = groups[place]
    bars = []
    for index, count in enumerate(group["counts"]):
        if count <= 0:
            continue
        width = (x[index + 1] - x[index]) * 0.9 / len(groups)
        left = x[index] + (x[index + 1] - x[index]) * 0.05 + place * width
        title = f"{group['name']}: {number(count)} from {number(edges[index])} to {number(edges[index + 1])}"
        top = y(count)
        bars.append(
            Bar(
                x=round(left, 1),
                y=top,
                width=round(max(width, 0.8), 1),
                height=round(BOTTOM - top, 1),
                colour=colour(place),
                title=title,
            )
        )
    return bars


def _edge_ticks(edges: Sequence[float], positions: Sequence[float]) -> list[Tick]:
    step = max(1, math.ceil(len(edges) / 9))
    return [Tick(at=positions[index], text=number(edges[index])) for index in range(0, len(edges), step)]
