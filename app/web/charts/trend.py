"""The chart of one check over many runs, drawn by the server with a link per run, and its summary in words."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.documents import Members
from app.formats import number, percent, times
from app.runs.results.bounds import NAMES, demand, difference, measured, relation_of, share
from app.web.charts.scales import Scale
from trainer.contract.events import decode_number
from trainer.contract.result import Relation

Item = Members
"""One run of `app.runs.results.trends.trend`."""

LEFT: Final = 66
RIGHT: Final = 708
TOP: Final = 14
BOTTOM: Final = 216
LOG_FROM: Final = 50.0
"""A larger ratio between the largest and the smallest positive value is drawn on a logarithmic scale."""
ROSE: Final = 3.0
"""Factor for a warning about a passing run, compared with the usual share of its limit or margin above its minimum."""
BEFORE: Final = 20
"""Number of earlier runs whose median the newest is compared with."""


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
    """The data of the template."""

    points: list[Point]
    curve: list[str]
    """SVG point lists of the measured values, broken at runs without a finite value."""
    limits: list[str]
    limit_name: str
    """Name of the limit: `limit`, `expected` or `minimum`."""
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    log: bool
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The newest run compared with earlier runs."""

    css: str
    """Class of the banner: `pass`, `fail`, `warn` or `inconclusive`."""
    title: str
    text: str


def trend_chart(items: Sequence[Item]) -> TrendChart:
    """Draw the runs in order, evenly spaced; non-finite values are drawn at the upper edge."""
    values = [_float(item["measured"]) for item in items]
    limits = [_float(item["limit"]) for item in items]
    y, log = _scale([*values, *limits])
    x = Scale(low=0, high=max(1, len(items) - 1), start=LEFT + 10, end=RIGHT - 10)
    points = [
        Point(x=x(place), y=_height(y, value), run_id=item["run_id"], mark=_mark(item["passed"]), title=_title(item))
        for place, (item, value) in enumerate(zip(items, values, strict=True))
        if item["measured"] is not None
    ]
    step = max(1, math.ceil(len(items) / 12))
    return TrendChart(
        points=points,
        curve=_pieces(x, y, values),
        limits=_pieces(x, y, limits),
        limit_name=NAMES[relation_of(items[-1])] if items else "",
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
    return y(max(value, y.low))  # a zero on a logarithmic scale is drawn at the bottom


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


def _title(item: Item) -> str:
    name = f" {item['name']}" if item["name"] else ""
    used = share(item)
    of_it = "" if used is None else f", {times(used)} of it"
    found = f"{_mark(item['passed'])}, measured {measured(item)}, {demand(item)}{of_it}"
    return f"Run {item['run_id']}{name}: {found}"


def reading(items: Sequence[Item]) -> Reading:
    """Return whether the newest run passed, since when runs fail, and how it compares with earlier runs."""
    newest = items[-1]
    run = f"run {newest['run_id']}"
    if newest["passed"] is None:
        return Reading(css="inconclusive", title=f"The newest, {run}, could not be judged", text=_before(items))
    if not newest["passed"]:
        since, failing = _failing(items)
        held = f"{failing} runs in a row, since run {since}. " if failing > 1 else "The previous run did not. "
        held = "It is the only run so far. " if len(items) == 1 else held
        return Reading(css="fail", title=f"The newest, {run}, fails{_against(newest)}", text=held + _before(items))
    title, nearer = f"The newest, {run}, passes{_against(newest)}", _nearer(items)
    if nearer:
        return Reading(css="warn", title=f"{title}, {nearer}", text=_before(items))
    return Reading(css="pass", title=title, text=_before(items))


def _against(item: Item) -> str:
    """Return how the measured number compares with the limit, as the end of a sentence."""
    relation, off = relation_of(item), difference(item)
    if relation is Relation.AT_MOST:
        used = share(item)
        if used is None:
            return ""
        return f" at {times(used)} its limit" if abs(used) > 10 else f" with {times(used)} of its limit"
    if off is None:
        return ""
    if relation is Relation.EQUAL:
        as_expected = " with the expected number" if item["passed"] else " although its number is as expected"
        return f", {number(abs(off))} {'more' if off > 0 else 'less'} than expected" if off else as_expected
    return f", {number(abs(off))} {'above' if off > 0 else 'below'} its minimum" if off else " at its minimum"


def _nearer(items: Sequence[Item]) -> str:
    """Return how much nearer to its limit the newest run is than earlier passing runs; empty if it is not."""
    usual, newest = _usual(items), _room(items[-1])
    if usual is None or newest is None or usual <= 0:
        return ""
    if relation_of(items[-1]) is Relation.AT_MOST:
        return f"{number(newest / usual)} times the usual share" if newest > ROSE * usual else ""
    return f"{percent(newest / usual)} of the usual margin" if newest < usual / ROSE else ""


def _room(item: Item) -> float | None:
    """Return the number compared between runs: the share of a limit, or the margin above a minimum."""
    relation = relation_of(item)
    if relation is Relation.EQUAL:
        return None
    return share(item) if relation is Relation.AT_MOST else difference(item)


def _failing(items: Sequence[Item]) -> tuple[int, int]:
    """Return (first run of the unbroken row of failures at the end, length of that row)."""
    since, count = 0, 0
    for item in reversed(items):
        if item["passed"] is not False:
            break
        since, count = item["run_id"], count + 1
    return since, count


def _usual(items: Sequence[Item]) -> float | None:
    """Return the median of `_room` over earlier passing runs with the same relation; None without any."""
    alike = [item for item in items[:-1] if relation_of(item) is relation_of(items[-1])]
    passing = [room for item in alike if item["passed"] and (room := _room(item)) is not None]
    return statistics.median(passing[-BEFORE:]) if passing else None


def _before(items: Sequence[Item]) -> str:
    relation, usual = relation_of(items[-1]), _usual(items)
    if relation is Relation.EQUAL:
        passed, before = sum(bool(item["passed"]) for item in items[:-1]), len(items) - 1
        if before <= 1:
            return "The previous run passed." if passed else ""
        return f"{passed:,} of the {before:,} earlier runs passed."
    if usual is None:
        return "No earlier run passed with a comparable number."
    if relation is Relation.AT_MOST:
        return f"Earlier passing runs used {times(usual)} of theirs (median of at most {BEFORE})."
    return f"Earlier passing runs were {number(usual)} above their minimum (median of at most {BEFORE})."
