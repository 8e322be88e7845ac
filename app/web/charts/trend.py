"""The chart of one check over many runs, drawn by the server with a link per run, and its reading in words."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.formats import number, times
from app.web.charts.scales import Scale
from trainer.contract.events import decode_number

LEFT: Final = 66
RIGHT: Final = 708
TOP: Final = 14
BOTTOM: Final = 216
LOG_FROM: Final = 50.0
"""A larger ratio between the largest and the smallest positive value is drawn on a logarithmic scale."""
ROSE: Final = 3.0
"""A passing run that uses this many times the share of its limit that runs before it used is pointed out."""
BEFORE: Final = 20
"""Runs whose median the newest is compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run in the chart."""

    x: float
    y: float
    run_id: int
    mark: str
    """`pass`, `fail` or `open`."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendChart:
    """Everything the template draws."""

    points: list[Point]
    curve: list[str]
    """SVG point lists of the measured values, broken where a run has no finite one."""
    limits: list[str]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    log: bool
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the newest run says against those before it."""

    css: str
    """Class of the banner: `pass`, `fail`, `warn` or `inconclusive`."""
    title: str
    text: str


def trend_chart(items: Sequence[Mapping[str, Any]]) -> TrendChart:
    """Draw the runs in their order, evenly spaced; what is no finite number stands at the upper edge."""
    measured = [_float(item["measured"]) for item in items]
    limits = [_float(item["limit"]) for item in items]
    y, log = _scale([*measured, *limits])
    x = Scale(low=0, high=max(1, len(items) - 1), start=LEFT + 10, end=RIGHT - 10)
    points = [
        Point(x=x(place), y=_height(y, value), run_id=item["run_id"], mark=_mark(item["passed"]), title=_title(item))
        for place, (item, value) in enumerate(zip(items, measured, strict=True))
        if item["measured"] is not None
    ]
    step = max(1, math.ceil(len(items) / 12))
    return TrendChart(
        points=points,
        curve=_pieces(x, y, measured),
        limits=_pieces(x, y, limits),
        x_ticks=[(x(place), str(items[place]["run_id"])) for place in range(0, len(items), step)],
        y_ticks=[(y(value), number(int(value) if value.is_integer() else value)) for value in y.ticks(5)],
        log=log,
        failed=sum(item["passed"] is False for item in items),
    )


def _float(value: Any) -> float:
    return math.nan if value is None else float(decode_number(value) or 0.0)


def _scale(values: Sequence[float]) -> tuple[Scale, bool]:
    finite = [value for value in values if math.isfinite(value)]
    positive = [value for value in finite if value > 0]
    if positive and min(finite) >= 0 and max(positive) > LOG_FROM * min(positive):
        low = 10.0 ** math.floor(math.log10(min(positive)) - 0.1)
        return Scale(low=low, high=max(positive) * 2, start=BOTTOM, end=TOP, log=True), True
    low, high = min([*finite, 0.0]), max([*finite, 0.0])
    return Scale(low=low, high=(high - low) * 1.08 + low if high > low else low + 1, start=BOTTOM, end=TOP), False


def _height(y: Scale, value: float) -> float:
    if not math.isfinite(value):
        return TOP
    return y(max(value, y.low))  # a zero on a logarithmic scale stands at its foot


def _pieces(x: Scale, y: Scale, values: Sequence[float]) -> list[str]:
    pieces: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if math.isfinite(value):
            pieces[-1].append(f"{x(place)},{_height(y, value)}")
        elif pieces[-1]:
            pieces.append([])
    return [" ".join(piece) for piece in pieces if len(piece) > 1]


def _mark(passed: bool | None) -> str:
    return "open" if passed is None else "pass" if passed else "fail"


def _title(item: Mapping[str, Any]) -> str:
    name = f" {item['name']}" if item["name"] else ""
    share = f", {times(item['margin'])} of it" if item["margin"] is not None else ""
    return (
        f"Run {item['run_id']}{name}: {_mark(item['passed'])}, "
        f"measured {number(item['measured'])}, limit {number(item['limit'])}{share}"
    )


def reading(items: Sequence[Mapping[str, Any]]) -> Reading:
    """Say whether the newest run passed, since when it fails, and how it compares with the runs before it."""
    newest = items[-1]
    usual = _usual(items)
    use = _use(newest["margin"])
    run = f"run {newest['run_id']}"
    if newest["passed"] is None:
        return Reading(css="inconclusive", title=f"The newest, {run}, could not be judged", text=_before(usual))
    if not newest["passed"]:
        since, failing = _failing(items)
        held = f"{failing} runs in a row, since run {since}. " if failing > 1 else "The one before it did not. "
        held = "It is the only one so far. " if len(items) == 1 else held
        return Reading(css="fail", title=f"The newest, {run}, fails{use}", text=held + _before(usual))
    rose = usual is not None and newest["margin"] is not None and newest["margin"] > ROSE * usual > 0
    title = f"The newest, {run}, passes{use}"
    if rose and usual is not None:
        ratio = number(newest["margin"] / usual)
        return Reading(css="warn", title=f"{title}, {ratio} times what was usual", text=_before(usual))
    return Reading(css="pass", title=title, text=_before(usual))


def _use(margin: float | None) -> str:
    if margin is None:
        return ""
    return f" at {times(margin)} its limit" if abs(margin) > 10 else f" with {times(margin)} of its limit"


def _failing(items: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return (first run of the unbroken row of failures at the end, length of that row)."""
    since, count = 0, 0
    for item in reversed(items):
        if item["passed"] is not False:
            break
        since, count = item["run_id"], count + 1
    return since, count


def _usual(items: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the median share of the limit over the passing runs before the newest, None where there is none."""
    passing = [item["margin"] for item in items[:-1] if item["passed"] and item["margin"] is not None]
    return statistics.median(passing[-BEFORE:]) if passing else None


def _before(usual: float | None) -> str:
    if usual is None:
        return "No run before it passed with a number to compare with."
    return f"Passing runs before it used {times(usual)} of theirs (median of at most {BEFORE})."
