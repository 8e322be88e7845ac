"""Charts as the server draws them in SVG: line charts and histograms, complete without JavaScript."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.web.pages.formats import number
from app.web.pages.scales import Scale, spread
from trainer.contract.events import decode_number

WIDTH: Final = 720
HEIGHT: Final = 240
LEFT: Final = 58
RIGHT: Final = 712
TOP: Final = 10
BOTTOM: Final = 204
COLOURS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A labelled position on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: unbroken pieces, as SVG point lists."""

    name: str
    colour: str
    pieces: list[str]
    dots: list[tuple[float, float]]
    """Points that stand alone between gaps."""
    first_gap: str
    """Where the first value that is not finite stands, in words; empty when there is none."""


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


def floats(values: Sequence[Any]) -> list[float]:
    """Return numbers as floats; null and names of non-finite numbers become what they stand for."""
    return [math.nan if value is None else float(decode_number(value) or 0.0) for value in values]


def ticks(scale: Scale, most: int) -> list[Tick]:
    """Return the labelled ticks of a scale."""
    return [
        Tick(at=scale(value), text=number(int(value) if value.is_integer() else value)) for value in scale.ticks(most)
    ]


def colour(index: int) -> str:
    """Return the colour class of the line or group with that index."""
    return f"c{index % COLOURS}"


def series_chart(panel: Mapping[str, Any]) -> Chart:
    """Draw a `series` panel; values that are not finite are gaps."""
    xs = floats(panel["x"])
    lines = panel["lines"]
    known = [at for at in xs if math.isfinite(at)]
    low_x, high_x = min(known, default=0.0), max(known, default=1.0)
    x = Scale(low=low_x, high=high_x if high_x > low_x else low_x + 1, start=LEFT, end=RIGHT)
    low, high = spread([value for line in lines for value in floats(line["y"])])
    y = Scale(low=low, high=high, start=BOTTOM, end=TOP)
    curves = [_curve(colour(index), line, xs, (x, y)) for index, line in enumerate(lines)]
    return Chart(x_ticks=ticks(x, 8), y_ticks=ticks(y, 5), curves=curves)


def _curve(css: str, line: Mapping[str, Any], xs: Sequence[float], axes: tuple[Scale, Scale]) -> Curve:
    x, y = axes
    name = line["name"]
    pieces: list[list[tuple[float, float]]] = [[]]
    first_gap = ""
    for at, value, given in zip(xs, floats(line["y"]), line["y"], strict=False):
        if math.isfinite(value) and math.isfinite(at):
            pieces[-1].append((x(at), y(value)))
            continue
        if given is not None and not first_gap:
            first_gap = f"{name}: first {number(given)} at {number(int(at) if at.is_integer() else at)}"
        if pieces[-1]:
            pieces.append([])
    return Curve(
        name=name,
        colour=css,
        pieces=[" ".join(f"{px},{py}" for px, py in piece) for piece in pieces if len(piece) > 1],
        dots=[piece[0] for piece in pieces if len(piece) == 1],
        first_gap=first_gap,
    )


def histogram_chart(panel: Mapping[str, Any]) -> Chart:
    """Draw a `histogram` panel: groups side by side in every bin.

    On a logarithmic axis bins are drawn equally wide. Counts that span more than two decades are drawn on a logarithmic
    scale too, and the chart says so.
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
