"""Overlaid curves, confusion matrices with their difference, and Markdown escaped in its cells."""

from typing import Any

from app.runs.results.compare import RunSeries
from app.runs.telemetry.series import MetricSeries
from app.web.charts.comparison import RunLine, curves, difference_class, matrix_pairs, overlay
from app.web.views.markdown import audit, cell, summary_tables
from app.web.views.panels import panel_views
from app.web.views.run import summary_rows
from tests.support.results import CLASSES, make_result, matrix


def test_each_run_has_its_colour() -> None:
    lines = [
        RunLine(place=0, name="run 1", x=[0, 2], y=[1.0, 0.5]),
        RunLine(place=0, name="run 1 too", x=[0], y=[1.0]),
        RunLine(place=1, name="run 2", x=[1, 2], y=[3.0, 2.0]),
    ]
    panel = overlay("loss", "step", lines)
    assert [line["colour"] for line in panel["lines"]] == [0, 0, 1]
    assert panel["lines"][0]["dash"] != panel["lines"][1]["dash"]
    assert panel["lines"][0]["dash"] != panel["lines"][2]["dash"]
    (view,) = panel_views([panel])
    assert [len(curve.pieces) for curve in view.view.curves] == [
        1,
        0,
        1,
    ]  # different steps of another run break no line


SERIES = {
    "type": "series",
    "title": "Loss",
    "x": [0, 1],
    "x_label": "epoch",
    "lines": [{"name": "train", "y": [1, 2]}],
}


def test_panels_of_one_title_are_overlaid() -> None:
    documents = [RunSeries(id=3, series=[]), RunSeries(id=4, series=[])]
    found = curves([{"panels": [SERIES]}, {"panels": [SERIES]}], documents)
    (view,) = found.panels
    assert [line["name"] for line in view.data["lines"]] == ["run 3 · train", "run 4 · train"]


def test_curves_are_found_by_name() -> None:
    points: dict[str, Any] = {"steps": [0.0, 1.0], "values": [1.0, 2.0], "points": 2, "thinned": False}
    series = [MetricSeries(key=f"m{number}", rank=0, stage="train", attempt=1, **points) for number in range(30)]
    documents = [RunSeries(id=3, series=series), RunSeries(id=4, series=[])]
    found = curves([{}, {}], documents)
    assert (len(found.panels), found.matching, found.more) == (12, 30, 24)
    found = curves([{}, {}], documents, find="M29")
    assert ([view.data["title"] for view in found.panels], found.more) == (["m29"], None)


def confusion(weight: int, mode: str = "no_sync", labels: list[str] = CLASSES) -> dict[str, Any]:
    panel = {"type": "confusion_matrix", "title": mode, "labels": labels, "counts": matrix(weight), "mode": mode}
    return {"panels": [panel]}


def test_difference_is_second_minus_first() -> None:
    (pair,) = matrix_pairs([1, 2], [confusion(80), confusion(90)])
    diagonal = [row.cells[place] for place, row in enumerate(pair.difference)]
    assert {cell.value for cell in diagonal} == {10}
    assert {cell.css for cell in diagonal} == {"d2"}
    assert all(cell.css in ("h0", "d2") for row in pair.difference for cell in row.cells)
    (back,) = matrix_pairs([1, 2], [confusion(90), confusion(80)])
    assert {back.difference[0].cells[0].css} == {"d-2"}


def test_other_classes_are_not_compared() -> None:
    assert matrix_pairs([1, 2], [confusion(80), confusion(80, labels=[*CLASSES[1:], "other"])]) == []


def test_first_run_is_compared_with_every_other() -> None:
    pairs = matrix_pairs([5, 7, 9], [confusion(80), confusion(90), confusion(80)])
    assert [pair.ids for pair in pairs] == [(5, 7), (5, 9)]
    assert pairs[0].difference[0].cells[0].value == 10
    assert pairs[1].difference[0].cells[0].value == 0


def test_more_confusion_is_worse() -> None:
    assert difference_class(0.1, better_up=True) == "d2"
    assert difference_class(0.1, better_up=False) == "d-2"
    assert difference_class(0.001, better_up=False) == "h0"


def test_cell_stays_in_its_column() -> None:
    assert cell("a|b\n<img>") == "a\\|b &lt;img>"


def test_audit_lists_checks_and_modes() -> None:
    result = make_result("cifar").model_dump(mode="json")
    text = audit({"id": 3, "name": "a|b", "kind": "cifar"}, result)
    assert "**Run 3 (a\\|b): cifar, verdict pass**" in text
    assert "| worked_example | pass | 18 | expected 18 | statements |" in text
    assert "| gradient_parity | pass | 2.98e-8 | at most 1e-6 |" in text
    assert "| negative_control | pass | 0.0235 | must exceed 1e-6 |" in text
    assert "| no_sync | 12 | 0.91 |" in text


def test_summary_is_table_or_row() -> None:
    summary = {"modes": {"every": {"steps": 1, "list": [1]}, "no_sync": {"steps": 2}}, "n": 5, "plain": {"a": 1}}
    assert summary_tables(summary) == [(["mode", "steps"], [["every", 1], ["no_sync", 2]])]
    assert summary_rows(summary) == [("n", "5"), ("plain.a", "1")]


def test_long_lists_of_a_summary_are_counted() -> None:
    assert summary_rows({"kills": [{"step": 3}, {"step": 4}]}) == [("kills", "step 3; step 4")]
    windows = [{"step": step, "cells": [{"rank": 0, "weight": 0.25}]} for step in range(200)]
    assert summary_rows({"windows": windows}) == [("windows", "200 entries, listed in result.json")]
