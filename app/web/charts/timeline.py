"""Timelines as the server draws them: lanes with spans, drawn to scale; overlapping spans below each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.formats import number
from app.web.charts.scales import Scale
from app.web.charts.shapes import LEFT, RIGHT, TOP, Bar, Tick, Values, colour, floats, ticks

ROW: Final = 16
"""Height of a row of spans, SVG units."""
GAP: Final = 10
"""Between two lanes."""
THINNEST: Final = 0.8
MOST_VALUES: Final = 200
"""Rows of the table of values."""
MOST_ROWS: Final = 12
"""Rows of one lane; what overlaps more often is drawn over the last row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The name of a lane and where it is."""

    name: str
    at: float
    """Of its text."""
    bottom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Everything a template needs to draw one timeline."""

    height: float
    """Of the drawing without what is below the axis."""
    lanes: list[Lane]
    bars: list[Bar]
    x_ticks: list[Tick]
    keys: list[tuple[str, str]]
    """Kind of span and its colour."""
    values: Values


@dataclass(frozen=True, slots=True)
class _Span:
    kind: str
    label: str
    begin: float
    end: float


def timeline_chart(panel: Mapping[str, Any]) -> Timeline:
    """Draw a `timeline` panel; spans without finite times are left out of the drawing."""
    lanes = [(str(lane["name"]), _spans(lane["spans"])) for lane in panel["lanes"]]
    spans = [span for _, own in lanes for span in own]
    kinds = list(dict.fromkeys(span.kind for span in spans))
    low, high = min((span.begin for span in spans), default=0.0), max((span.end for span in spans), default=1.0)
    scale = Scale(low=low, high=high if high > low else low + 1.0, start=LEFT, end=RIGHT)
    unit = str(panel.get("unit", ""))
    bars: list[Bar] = []
    drawn: list[Lane] = []
    top = float(TOP)
    for name, own in lanes:
        rows, count = packed(own)
        for span, row in zip(own, rows, strict=True):
            bars.append(_bar(span, top + row * ROW, scale, (name, unit, colour(kinds.index(span.kind)))))
        drawn.append(Lane(name=name, at=top + count * ROW / 2 + 4, bottom=top + count * ROW + GAP / 2))
        top += count * ROW + GAP
    return Timeline(
        height=top,
        lanes=drawn,
        bars=bars,
        x_ticks=ticks(scale, 8),
        keys=[(kind, colour(place)) for place, kind in enumerate(kinds)],
        values=_values(lanes, unit),
    )


def _spans(given: Sequence[Mapping[str, Any]]) -> list[_Span]:
    found = []
    for item in given:
        begin, end = floats([item["begin"], item["end"]])
        if math.isfinite(begin) and math.isfinite(end) and end >= begin:
            found.append(_Span(str(item["kind"]), str(item.get("label", "")), begin, end))
    return sorted(found, key=lambda span: (span.begin, -span.end))


def packed(spans: Sequence[_Span]) -> tuple[list[int], int]:
    """Return the row of every span and the number of rows: the first row that is free when the span begins."""
    free: list[float] = []
    rows = []
    for span in spans:
        row = next((place for place, end in enumerate(free) if end <= span.begin), len(free))
        row = min(row, MOST_ROWS - 1)
        if row == len(free):
            free.append(span.end)
        free[row] = max(free[row], span.end)
        rows.append(row)
    return rows, max(1, len(free))


def _bar(span: _Span, top: float, scale: Scale, words: tuple[str, str, str]) -> Bar:
    lane, unit, css = words
    left, right = scale(span.begin), scale(span.end)
    about = f"{span.kind} {span.label}".strip()
    return Bar(
        x=left,
        y=top + 1,
        width=round(max(right - left, THINNEST), 1),
        height=ROW - 2,
        colour=css,
        title=f"{lane}: {about}, {number(span.begin)} to {number(span.end)} {unit}".strip(),
    )


def _values(lanes: Sequence[tuple[str, Sequence[_Span]]], unit: str) -> Values:
    suffix = f", {unit}" if unit else ""
    rows = [
        [name, f"{span.kind} {span.label}".strip(), span.begin, span.end, span.end - span.begin]
        for name, own in lanes
        for span in own
    ]
    columns = ["lane", "span", f"begin{suffix}", f"end{suffix}", f"length{suffix}"]
    return Values(columns=columns, rows=rows[:MOST_VALUES], steps=len(rows))
