"""Charts of a comparison: overlaid curves, and confusion matrices with their difference."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.runs.results.compare import RunSeries
from app.web.charts.lines import stepped_panel
from app.web.charts.metrics import FIRST_CHARTS, MetricCharts, line_name
from app.web.views.panels import HeatCell, HeatRow, confusion_rows, panel_views


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPair:
    """Two confusion matrices over the same classes, and their difference in row shares."""

    title: str
    labels: list[str]
    ids: tuple[int, int]
    left: list[HeatRow]
    right: list[HeatRow]
    difference: list[HeatRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """One line of one run."""

    place: int
    """Index of the run in the comparison: its colour."""
    name: str
    x: Sequence[Any]
    y: Sequence[Any]
    points: int | None = None
    """Number of existing points, of which these are drawn; None for a curve of a result, which is complete."""


def curves(
    results: Sequence[Mapping[str, Any]],
    documents: Sequence[RunSeries],
    *,
    find: str = "",
    most: int = FIRST_CHARTS,
) -> MetricCharts:
    """Return the curves of the results and one chart per metric, each with the lines of every run.

    `documents` and `results` are in the order of the runs; `find` filters the names, case-insensitively.
    """
    found = _result_lines([document.id for document in documents], results) | _metric_lines(documents)
    matching = [place for place in found if find.casefold() in place[0].casefold()]
    panels = panel_views([overlay(*place, found[place]) for place in matching[:most]], "curve")
    names = list(dict.fromkeys(title for title, _ in found))
    return MetricCharts(panels=panels, names=names, matching=len(matching), find=find, most=most)


def _metric_lines(documents: Sequence[RunSeries]) -> dict[tuple[str, str], list[RunLine]]:
    lines: dict[tuple[str, str], list[RunLine]] = {}
    for place, document in enumerate(documents):
        for item in document.series:
            name = f"run {document.id} · {line_name(item)}"
            line = RunLine(place=place, name=name, x=item.steps, y=item.values, points=item.points)
            lines.setdefault((item.key, "step"), []).append(line)
    return dict(sorted(lines.items()))


def _result_lines(ids: Sequence[int], results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[RunLine]]:
    lines: dict[tuple[str, str], list[RunLine]] = {}
    for place, (run_id, result) in enumerate(zip(ids, results, strict=True)):
        for panel in result.get("panels", []):
            for line in panel["lines"] if panel["type"] == "series" else ():
                drawn = RunLine(place=place, name=f"run {run_id} · {line['name']}", x=panel["x"], y=line["y"])
                lines.setdefault((panel["title"], panel["x_label"]), []).append(drawn)
    return lines


def overlay(title: str, x_label: str, lines: Sequence[RunLine]) -> dict[str, Any]:
    """Return a series panel: a colour per run, a dash pattern for each of its lines, every line with its own steps."""
    drawn, seen = [], Counter[int]()
    for line in lines:
        # The first lines of the runs also differ in their dash pattern, so that runs are distinguishable without
        # colours.
        dash = line.place + seen[line.place]
        drawn.append({"name": line.name, "x": line.x, "y": line.y, "colour": line.place, "dash": dash})
        seen[line.place] += 1
    there, here = sum(line.points or len(line.x) for line in lines), sum(len(line.x) for line in lines)
    return {**stepped_panel(title, x_label, drawn, drawn=here, there=there), "points": there, "drawn": here}


def matrix_pairs(ids: Sequence[int], results: Sequence[Mapping[str, Any]]) -> list[MatrixPair]:
    """Return the confusion matrices of the first run against every other: same mode or position, same classes."""
    matrices = [[p for p in result.get("panels", []) if p["type"] == "confusion_matrix"] for result in results]
    pairs = []
    for place, panel in enumerate(matrices[0] if matrices else []):
        for run_id, others in zip(ids[1:], matrices[1:], strict=True):
            partner = next((item for item in others if item["mode"] == panel["mode"]), None)
            partner = partner or (others[place] if place < len(others) else None)
            if partner is not None and partner["labels"] == panel["labels"]:
                pairs.append(_pair((ids[0], run_id), panel, partner))
    return pairs


def _pair(ids: tuple[int, int], left: Mapping[str, Any], right: Mapping[str, Any]) -> MatrixPair:
    labels = list(left["labels"])
    rows_left, rows_right = confusion_rows(labels, left["counts"]), confusion_rows(labels, right["counts"])
    difference = [
        HeatRow(label=row.label, cells=_differences(row, other, place))
        for place, (row, other) in enumerate(zip(rows_left, rows_right, strict=True))
    ]
    title = left["title"] if left["title"] == right["title"] else f"{left['title']} against {right['title']}"
    return MatrixPair(title=title, labels=labels, ids=ids, left=rows_left, right=rows_right, difference=difference)


def _differences(left: HeatRow, right: HeatRow, place: int) -> list[HeatCell]:
    return [
        HeatCell(
            value=second.value - first.value,
            share=(second.share or 0.0) - (first.share or 0.0),
            css=difference_class((second.share or 0.0) - (first.share or 0.0), better_up=column == place),
        )
        for column, (first, second) in enumerate(zip(left.cells, right.cells, strict=True))
    ]


def difference_class(change: float, *, better_up: bool) -> str:
    """Return the colour class of a change: green where the second run is better, red where it is worse."""
    strength = 0 if abs(change) < 0.005 else 1 if abs(change) < 0.05 else 2 if abs(change) < 0.2 else 3
    if strength == 0:
        return "h0"
    return f"d{strength}" if (change > 0) is better_up else f"d-{strength}"
