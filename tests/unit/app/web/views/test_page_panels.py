"""Panels prepared for drawing: shares per row, cells that differ, bars, and unknown types left out."""

from typing import Any

from app.web.views.panels import bar_rows, confusion_rows, heat_class, heat_rows, panel_views
from tests.support.results import CLASSES, every_panel, matrix


def test_every_panel_type_is_drawn() -> None:
    panels = [panel.model_dump(mode="json") for panel in every_panel()]
    views = panel_views(panels)
    assert [view.type for view in views] == [panel["type"] for panel in panels]
    assert len({view.id for view in views}) == len(views)
    assert panel_views([{"type": "hologram", "title": "later"}]) == []


def test_series_of_one_point_is_no_chart() -> None:
    def series(*values: float) -> dict[str, Any]:
        common = {"type": "series", "title": "Loss", "x_label": "epoch", "y_label": "nats"}
        return {**common, "x": list(range(len(values))), "lines": [{"name": "train", "y": list(values)}]}

    one, two = panel_views([series(0.5), series(0.5, 0.25)])
    assert (one.type, one.view.rows) == ("numbers", [["train", 0, 0.5]])
    assert (two.type, len(two.view.curves)) == ("series", 1)


def test_confusion_shares_sum_to_one() -> None:
    for row in confusion_rows(CLASSES, matrix()):
        assert row.total == 100
        assert abs(sum(cell.share or 0.0 for cell in row.cells) - 1) < 1e-12


def test_empty_class_divides_by_nothing() -> None:
    (empty, _) = confusion_rows(["a", "b"], [[0, 0], [1, 3]])
    assert [cell.css for cell in empty.cells] == ["h0", "h0"]


def test_heat_grows_with_share() -> None:
    assert [heat_class(share) for share in (0.0, 1e-6, 0.3, 1.0, float("nan"))] == ["h0", "h1", "h4", "h7", "h0"]


def test_cell_off_expectation_is_marked() -> None:
    panel: dict[str, Any] = {"rows": ["r"], "columns": ["a", "b"], "values": [[1, 2]], "expected": [[1, 1]]}
    assert [cell.odd for cell in heat_rows(panel)[0].cells] == [False, True]
    assert not any(cell.odd for cell in heat_rows({**panel, "expected": None})[0].cells)


def test_longest_bar_fills_its_cell() -> None:
    panel = {"labels": ["a", "b"], "groups": [{"name": "g", "values": [5, 10]}, {"name": "h", "values": ["NaN", 1]}]}
    assert [bar.width for bar in bar_rows(panel)] == [50, 0, 100, 10]
