"""Panels of a result, prepared for their templates: any kind is drawn only from its checks and panels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.web.charts.lines import series_chart, single_points
from app.web.charts.shapes import colour, floats, histogram_chart
from app.web.charts.timeline import timeline_chart

HEAT_STEPS: Final = 7
NARROW_COLUMNS: Final = 5
"""Tables and heat maps with more columns use the full width."""
NUMBERS: Final = "numbers"
"""A type of view, not of panel: a series of one point is shown as a number in a table."""
KNOWN: Final = frozenset({"table", "confusion_matrix", "series", "histogram", "bars", "heat", "images", "timeline"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelView:
    """One panel and the data of its template."""

    id: str
    type: str
    """The panel's type, or NUMBERS for a series without a line to draw."""
    data: Mapping[str, Any]
    view: Any
    wide: bool = False
    """Whether it needs the full width of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatCell:
    """One coloured cell."""

    value: Any
    css: str
    share: float | None = None
    """Share of its row, 0 to 1."""
    expected: Any = None
    odd: bool = False
    """Whether it differs from the expected value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatRow:
    """One row of coloured cells."""

    label: str
    cells: list[HeatCell]
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """One bar with its label; `width` is a percentage of the longest bar."""

    label: str
    group: str
    colour: str
    value: Any
    width: float


def panel_views(panels: Sequence[Mapping[str, Any]], prefix: str = "panel") -> list[PanelView]:
    """Return the panels of known type, in order, each with a unique id on the page."""
    return [
        _panel_view(f"{prefix}-{index}", panel)
        for index, panel in enumerate(panels, start=1)
        if panel.get("type") in KNOWN
    ]


def _panel_view(name: str, panel: Mapping[str, Any]) -> PanelView:
    single = single_points(panel) if panel["type"] == "series" else None
    if single is not None:
        return PanelView(id=name, type=NUMBERS, data=panel, view=single)
    return PanelView(id=name, type=panel["type"], data=panel, view=_view(panel), wide=_wide(panel))


def _wide(panel: Mapping[str, Any]) -> bool:
    columns = panel.get("columns", ())
    return panel["type"] in ("confusion_matrix", "timeline") or len(columns) > NARROW_COLUMNS


def _view(panel: Mapping[str, Any]) -> Any:
    prepare = VIEWS.get(panel["type"])
    return None if prepare is None else prepare(panel)


def confusion_rows(labels: Sequence[str], counts: Sequence[Sequence[int]]) -> list[HeatRow]:
    """Return the matrix with row shares; colours follow the share, so classes of any size are comparable."""
    rows = []
    for label, row in zip(labels, counts, strict=True):
        total = sum(row)
        shares = [count / total if total else 0.0 for count in row]
        cells = [
            HeatCell(value=count, share=share, css=heat_class(share)) for count, share in zip(row, shares, strict=True)
        ]
        rows.append(HeatRow(label=label, cells=cells, total=total))
    return rows


def heat_class(share: float) -> str:
    """Return the colour class of a value between 0 and 1; any value above zero is coloured."""
    if not math.isfinite(share) or share <= 0:
        return "h0"
    return f"h{max(1, min(HEAT_STEPS, math.ceil(math.sqrt(share) * HEAT_STEPS)))}"


def heat_rows(panel: Mapping[str, Any]) -> list[HeatRow]:
    """Return the rows of a `heat` panel; cells that differ from `expected` are marked."""
    values = [floats(row) for row in panel["values"]]
    finite = [value for row in values for value in row if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    expected = panel.get("expected")
    rows = []
    for index, label in enumerate(panel["rows"]):
        cells = []
        for column, given in enumerate(panel["values"][index]):
            wanted = expected[index][column] if expected else None
            share = (values[index][column] - min(low, 0.0)) / ((high - min(low, 0.0)) or 1.0)
            odd = expected is not None and wanted != given
            cells.append(HeatCell(value=given, css=heat_class(share), expected=wanted, odd=odd))
        rows.append(HeatRow(label=label, cells=cells))
    return rows


def bar_rows(panel: Mapping[str, Any]) -> list[BarRow]:
    """Return every bar, label by label, groups side by side."""
    values = [floats(group["values"]) for group in panel["groups"]]
    longest = max((value for row in values for value in row if math.isfinite(value)), default=0.0) or 1.0
    return [
        BarRow(
            label=label,
            group=group["name"],
            colour=colour(place),
            value=group["values"][index],
            width=round(100 * max(0.0, values[place][index]) / longest, 2)
            if math.isfinite(values[place][index])
            else 0,
        )
        for index, label in enumerate(panel["labels"])
        for place, group in enumerate(panel["groups"])
    ]


VIEWS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "confusion_matrix": lambda panel: confusion_rows(panel["labels"], panel["counts"]),
    "series": series_chart,
    "histogram": histogram_chart,
    "bars": bar_rows,
    "heat": heat_rows,
    "timeline": timeline_chart,
}
"""What each type of panel needs to be drawn; the others are drawn from their data alone."""
