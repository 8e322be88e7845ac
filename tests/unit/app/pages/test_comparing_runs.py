"""Curves overlaid, confusion matrices with their difference, and Markdown that cannot break out of its cells."""

from typing import Any

from app.web.pages.comparing import difference_class, matrix_pairs, overlay, result_curves
from app.web.pages.markdown import audit, cell, summary_tables
from app.web.pages.runview import headline, summary_rows
from tests.support.results import CLASSES, make_result, matrix


def test_lines_share_one_axis() -> None:
    panel = overlay("loss", [("run 1", [0, 2], [1.0, 0.5]), ("run 2", [1, 2], [3.0, 2.0])], "step")
    assert panel["x"] == [0, 1, 2]
    assert [line["y"] for line in panel["lines"]] == [[1.0, None, 0.5], [None, 3.0, 2.0]]


def test_panels_of_one_title_are_overlaid() -> None:
    series = {
        "type": "series",
        "title": "Loss",
        "x": [0, 1],
        "x_label": "epoch",
        "lines": [{"name": "train", "y": [1, 2]}],
    }
    (view,) = result_curves([3, 4], [{"panels": [series]}, {"panels": [series]}])
    assert [line["name"] for line in view.data["lines"]] == ["run 3 · train", "run 4 · train"]


def confusion(weight: int, mode: str = "no_sync", labels: list[str] = CLASSES) -> dict[str, Any]:
    panel = {"type": "confusion_matrix", "title": mode, "labels": labels, "counts": matrix(weight), "mode": mode}
    return {"panels": [panel]}


def test_difference_is_second_minus_first() -> None:
    (pair,) = matrix_pairs([confusion(80), confusion(90)])
    diagonal = [row.cells[place] for place, row in enumerate(pair.difference)]
    assert {cell.value for cell in diagonal} == {10}
    assert {cell.css for cell in diagonal} == {"d2"}
    assert all(cell.css in ("h0", "d2") for row in pair.difference for cell in row.cells)
    (back,) = matrix_pairs([confusion(90), confusion(80)])
    assert {back.difference[0].cells[0].css} == {"d-2"}


def test_other_classes_are_not_compared() -> None:
    assert matrix_pairs([confusion(80), confusion(80, labels=[*CLASSES[1:], "other"])]) == []
    assert matrix_pairs([confusion(80)] * 3) == []


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
    assert "| gradient_parity | pass | 2.98e-8 | 1e-6 |" in text
    assert "| no_sync | 12 | 0.91 |" in text


def test_summary_is_table_or_row() -> None:
    summary = {"modes": {"every": {"steps": 1, "list": [1]}, "no_sync": {"steps": 2}}, "n": 5, "plain": {"a": 1}}
    assert summary_tables(summary) == [(["mode", "steps"], [["every", 1], ["no_sync", 2]])]
    assert summary_rows(summary) == [("n", "5"), ("plain.a", "1")]


def check(name: str, passed: bool | None) -> dict[str, Any]:
    return {"name": name, "passed": passed, "measured": 1, "limit": 2}


def test_headline_names_the_trouble() -> None:
    checks = [check("a", True), check("b", False), check("c", None), check("control", None)]
    assert [item["name"] for item in headline(checks)] == ["control", "b", "c"]
    assert [item["name"] for item in headline([check("a", True), check("gradient_parity", True)])] == [
        "gradient_parity"
    ]
