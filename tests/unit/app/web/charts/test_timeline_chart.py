"""Timelines: spans drawn to time, overlapping ones below each other, and what cannot be drawn left out."""

from typing import Any

import pytest

from app.web.charts.shapes import LEFT, RIGHT
from app.web.charts.timeline import MOST_ROWS, MOST_VALUES, ROW, timeline_chart


def panel(*lanes: list[tuple[str, Any, Any]], unit: str = "ms") -> dict[str, Any]:
    return {
        "type": "timeline",
        "title": "Steps",
        "unit": unit,
        "lanes": [
            {
                "name": f"rank {place}",
                "spans": [{"kind": kind, "begin": begin, "end": end} for kind, begin, end in spans],
            }
            for place, spans in enumerate(lanes)
        ],
    }


def test_spans_lie_where_their_times_are() -> None:
    chart = timeline_chart(panel([("forward", 0, 25), ("backward", 25, 100)]))
    first, second = chart.bars
    assert (first.x, second.x, round(second.x + second.width, 1)) == (LEFT, LEFT + (RIGHT - LEFT) / 4, RIGHT)
    assert first.y == second.y
    assert chart.keys == [("forward", "c0"), ("backward", "c1")]
    assert first.title == "rank 0: forward, 0 to 25 ms"


def test_spans_that_overlap_lie_below_each_other_and_lanes_do_not_touch() -> None:
    overlapping = [("backward", 0, 10), ("sync", 4, 9), ("sync", 9, 12), ("step", 10, 11)]
    chart = timeline_chart(panel(overlapping, [("forward", 0, 1)]))
    rows = [round((bar.y - chart.bars[0].y) / ROW) for bar in chart.bars[:4]]
    assert rows == [0, 1, 1, 0]
    assert chart.bars[4].y > chart.bars[1].y + ROW
    assert chart.lanes[0].bottom < chart.bars[4].y
    assert chart.height > chart.bars[4].y + ROW


def test_same_kind_has_one_colour_in_all_lanes() -> None:
    chart = timeline_chart(panel([("a", 0, 1), ("b", 1, 2)], [("b", 0, 1), ("a", 1, 2)]))
    assert [bar.colour for bar in chart.bars] == ["c0", "c1", "c1", "c0"]


@pytest.mark.parametrize("odd", [("a", "NaN", 1), ("a", None, 1), ("a", 0, "Infinity"), ("a", 2, 1)])
def test_spans_without_a_place_are_left_out(odd: tuple[str, Any, Any]) -> None:
    assert timeline_chart(panel([odd])).bars == []
    assert len(timeline_chart(panel([odd, ("b", 0, 1)])).bars) == 1


def test_empty_and_instant_timelines_are_drawn() -> None:
    assert timeline_chart(panel()).bars == []
    (bar,) = timeline_chart(panel([("step", 5, 5)])).bars
    assert bar.width > 0


def test_many_spans_are_bounded() -> None:
    chart = timeline_chart(panel([("a", 0, 1000 - place) for place in range(500)]))
    assert max(bar.y for bar in chart.bars) <= chart.bars[0].y + MOST_ROWS * ROW
    assert (len(chart.values.rows), chart.values.steps) == (MOST_VALUES, 500)
