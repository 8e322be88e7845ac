"""Line charts drawn by the server: gaps at non-finite values, the first of them marked, and a table.

A line may have its own steps (`x` in the line); otherwise it uses those of its panel. A step without a point does not
interrupt the line; null and non-finite values are points, and break the line.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.formats import number
from app.web.charts.scales import Scale, spread
from app.web.charts.shapes import (
    BOTTOM,
    COLOURS,
    LEFT,
    RIGHT,
    TOP,
    Chart,
    Curve,
    Odd,
    Values,
    colour,
    dash,
    floats,
    ticks,
)

TABLE_ROWS: Final = 100
"""Maximum number of steps in the table below a chart; the drawing and the exports have all of them."""

Point = tuple[float, float, Any]
"""Step, value as a float, value as given."""


def line_points(panel: Mapping[str, Any], line: Mapping[str, Any]) -> list[Point]:
    """Return the points of a line by increasing step; of two points at one step the later one counts."""
    given = line["y"]
    steps = floats(line.get("x", panel["x"]))
    found = {at: (at, value, raw) for at, value, raw in zip(steps, floats(given), given, strict=False)}
    return [found[at] for at in sorted(at for at in found if math.isfinite(at))]


def series_chart(panel: Mapping[str, Any]) -> Chart:
    """Draw a `series` panel; values that are not finite are gaps, and the first of each line is marked."""
    lines = [line_points(panel, line) for line in panel["lines"]]
    known = [at for points in lines for at, _, _ in points]
    low_x, high_x = min(known, default=0.0), max(known, default=1.0)
    x = Scale(low=low_x, high=high_x if high_x > low_x else low_x + 1, start=LEFT, end=RIGHT)
    low, high = spread([value for points in lines for _, value, _ in points])
    y = Scale(low=low, high=high, start=BOTTOM, end=TOP)
    curves = [_curve(index, line, lines[index], (x, y)) for index, line in enumerate(panel["lines"])]
    return Chart(x_ticks=ticks(x, 8), y_ticks=ticks(y, 5), curves=curves, values=_values(panel, lines))


def single_points(panel: Mapping[str, Any]) -> Values | None:
    """Return the points of a `series` panel as a table if no line has more than one; else None."""
    rows = []
    for line in panel["lines"]:
        points = line_points(panel, line)
        known = [point for point in points if point[2] is not None]
        if len(known) > 1:
            return None
        rows += [[line["name"], whole(at), given] for at, _, given in (known or points)[:1]]
    return Values(columns=["line", panel["x_label"] or "x", panel["y_label"] or "value"], rows=rows, steps=len(rows))


def whole(at: float) -> float | int:
    """Return a step as an integer if it is integral."""
    return int(at) if at.is_integer() else at


def _curve(index: int, line: Mapping[str, Any], points: Sequence[Point], axes: tuple[Scale, Scale]) -> Curve:
    x, y = axes
    pieces: list[list[tuple[float, float]]] = [[]]
    odd = None
    for at, value, given in points:
        if math.isfinite(value):
            pieces[-1].append((x(at), y(value)))
            continue
        if given is not None and odd is None:
            odd = Odd(
                at=x(at), name=number(given), text=f"{line['name']}: first {number(given)} at {number(whole(at))}"
            )
        if pieces[-1]:
            pieces.append([])
    return Curve(
        name=line["name"],
        colour=colour(line.get("colour", index)),
        dash=dash(line.get("dash", index + index // COLOURS)),
        pieces=[" ".join(f"{px},{py}" for px, py in piece) for piece in pieces if len(piece) > 1],
        dots=[piece[0] for piece in pieces if len(piece) == 1],
        odd=odd,
    )


def _values(panel: Mapping[str, Any], lines: Sequence[Sequence[Point]]) -> Values:
    """Return the first steps as a table, a column per line; None if a line has no point."""
    steps = sorted({at for points in lines for at, _, _ in points})
    shown = steps[:TABLE_ROWS]
    last = shown[-1] if shown else -math.inf
    columns = []
    for points in lines:
        known = {}
        for at, _, given in points:
            if at > last:
                break
            known[at] = given
        columns.append(known)
    rows = [[whole(at), *(known.get(at) for known in columns)] for at in shown]
    names = [panel["x_label"] or "x", *(line["name"] for line in panel["lines"])]
    return Values(columns=names, rows=rows, steps=len(steps))


def stepped_panel(
    title: str, x_label: str, lines: Sequence[Mapping[str, Any]], *, drawn: int, there: int, things: str = "points"
) -> dict[str, Any]:
    """Return a series panel whose lines have their own steps, with a note on how many points are drawn."""
    note = f"{drawn:,} of {there:,} {things}, extremes kept." if drawn < there else ""
    common = {"type": "series", "title": title, "note": note, "x": [], "x_label": x_label, "y_label": ""}
    return {**common, "lines": lines}


def script_data(panel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chart's data for the browser: names, steps and values, and colours and dashes if set."""
    kept = ("name", "x", "y", "colour", "dash")
    lines = [{name: line[name] for name in kept if name in line} for line in panel["lines"]]
    common = {"x": panel["x"], "x_label": panel["x_label"], "lines": lines}
    return common | {name: panel[name] for name in ("points", "drawn") if name in panel}
