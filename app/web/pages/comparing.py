"""What the comparison of runs shows beyond its rows: curves overlaid, and confusion matrices with their difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.web.pages.panels import HeatCell, HeatRow, PanelView, confusion_rows, panel_views
from app.web.pages.runview import line_name

MOST_CURVES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixPair:
    """Two confusion matrices over the same classes, and their difference in row shares."""

    title: str
    labels: list[str]
    left: list[HeatRow]
    right: list[HeatRow]
    difference: list[HeatRow]


def metric_curves(documents: Sequence[Mapping[str, Any]]) -> list[PanelView]:
    """Return one chart per metric with the lines of every run; `documents` are `{id, series}`."""
    lines: dict[str, list[tuple[str, list[Any], list[Any]]]] = {}
    for document in documents:
        for item in document["series"]:
            name = f"run {document['id']} · {line_name(item)}"
            lines.setdefault(item["key"], []).append((name, item["steps"], item["values"]))
    return panel_views([overlay(key, found, "step") for key, found in list(lines.items())[:MOST_CURVES]], "metric")


def result_curves(ids: Sequence[int], results: Sequence[Mapping[str, Any]]) -> list[PanelView]:
    """Return the series panels of the results, those of the same title in one chart."""
    lines: dict[str, list[tuple[str, list[Any], list[Any]]]] = {}
    labels: dict[str, str] = {}
    for run_id, result in zip(ids, results, strict=True):
        for panel in result.get("panels", []):
            if panel["type"] != "series":
                continue
            labels[panel["title"]] = panel["x_label"]
            for line in panel["lines"]:
                lines.setdefault(panel["title"], []).append((f"run {run_id} · {line['name']}", panel["x"], line["y"]))
    return panel_views([overlay(title, found, labels[title]) for title, found in lines.items()][:MOST_CURVES], "curve")


def overlay(title: str, lines: Sequence[tuple[str, list[Any], list[Any]]], x_label: str) -> dict[str, Any]:
    """Return a series panel over the union of all x; a line is null where it has no point."""
    xs = sorted({x for _, steps, _ in lines for x in steps if not isinstance(x, str) and x is not None})
    drawn = []
    for name, steps, values in lines:
        known = dict(zip(steps, values, strict=False))
        drawn.append({"name": name, "y": [known.get(x) for x in xs]})
    return {"type": "series", "title": title, "note": "", "x": xs, "x_label": x_label, "y_label": "", "lines": drawn}


def matrix_pairs(results: Sequence[Mapping[str, Any]]) -> list[MatrixPair]:
    """Return the confusion matrices of exactly two runs in pairs: same mode where there is one, else by place."""
    if len(results) != 2:
        return []
    left, right = ([p for p in result.get("panels", []) if p["type"] == "confusion_matrix"] for result in results)
    pairs = []
    for place, panel in enumerate(left):
        partner = next((item for item in right if item["mode"] == panel["mode"]), None)
        partner = partner or (right[place] if place < len(right) else None)
        if partner is not None and partner["labels"] == panel["labels"]:
            pairs.append(_pair(panel, partner))
    return pairs


def _pair(left: Mapping[str, Any], right: Mapping[str, Any]) -> MatrixPair:
    labels = list(left["labels"])
    rows_left, rows_right = confusion_rows(labels, left["counts"]), confusion_rows(labels, right["counts"])
    difference = [
        HeatRow(label=row.label, cells=_differences(row, other, place))
        for place, (row, other) in enumerate(zip(rows_left, rows_right, strict=True))
    ]
    title = left["title"] if left["title"] == right["title"] else f"{left['title']} against {right['title']}"
    return MatrixPair(title=title, labels=labels, left=rows_left, right=rows_right, difference=difference)


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
