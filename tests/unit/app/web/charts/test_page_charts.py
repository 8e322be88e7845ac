"""Charts drawn by the server: round ticks, gaps at non-finite values, and logarithmic counts."""

import pytest

from app.web.charts.lines import TABLE_ROWS, series_chart, single_points
from app.web.charts.scales import Scale, spread
from app.web.charts.shapes import BOTTOM, LEFT, RIGHT, TOP, colour, dash, histogram_chart


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.61, 1.43, [0.8, 1.0, 1.2, 1.4]), (-1, 1, [-1, -0.5, 0, 0.5, 1])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert Scale(low=low, high=high, start=0, end=1).ticks() == ticks


def test_log_scale_spaces_decades_evenly() -> None:
    scale = Scale(low=1, high=1e4, start=0, end=400, log=True)
    assert [scale(10.0**power) for power in range(5)] == [0, 100, 200, 300, 400]
    assert scale.ticks() == [1, 10, 100, 1000, 10000]


def test_spread_survives_odd_values() -> None:
    assert spread([float("nan"), float("inf")]) == (0.0, 1.0)
    assert spread([2.0, 2.0]) == pytest.approx((1.8, 2.2))


def panel(values: list[object]) -> dict[str, object]:
    return {"x": list(range(len(values))), "x_label": "step", "lines": [{"name": "loss", "y": values}]}


def test_line_breaks_at_values_that_are_no_number() -> None:
    (whole,) = series_chart(panel([3.0, 2.0, 1.0, 1.0])).curves
    assert len(whole.pieces) == 1
    assert whole.odd is None
    (broken,) = series_chart(panel([3.0, 2.0, "NaN", 1.0, None, 1.0, 0.5])).curves
    assert len(broken.pieces) == 2
    assert len(broken.dots) == 1
    assert broken.odd is not None
    assert (broken.odd.text, broken.odd.name) == ("loss: first NaN at 2", "NaN")
    assert LEFT < broken.odd.at < RIGHT


def test_null_is_gap_without_alarm() -> None:
    (curve,) = series_chart(panel([3.0, None, 1.0])).curves
    assert curve.odd is None
    assert len(curve.dots) == 2


def test_steps_of_another_line_are_no_gap() -> None:
    lines = [{"name": "even", "x": [0, 2, 4], "y": [1, 2, 3]}, {"name": "odd", "x": [1, 3], "y": [1, "-Infinity"]}]
    even, odd = series_chart({"x": [], "x_label": "step", "lines": lines}).curves
    assert (len(even.pieces), even.dots, even.odd) == (1, [], None)
    assert odd.odd is not None
    assert odd.odd.text == "odd: first −∞ at 3"


def test_one_point_per_line_is_a_table() -> None:
    lines = [{"name": "first", "x": [4], "y": [0.5]}, {"name": "second", "x": [1, 2.5], "y": [None, "NaN"]}]
    single = single_points({"x": [], "x_label": "step", "y_label": "", "lines": lines})
    assert single is not None
    assert single.columns == ["line", "step", "value"]
    assert single.rows == [["first", 4, 0.5], ["second", 2.5, "NaN"]]
    two = [*lines, {"name": "third", "x": [1, 2], "y": [3, 3]}]
    assert single_points({"x": [], "x_label": "step", "y_label": "", "lines": two}) is None


def test_later_point_of_a_step_counts() -> None:
    lines = [{"name": "repeated", "x": [0, 1, 2, 1], "y": [5.0, 5.0, 5.0, 7.0]}]
    values = series_chart({"x": [], "x_label": "step", "lines": lines}).values
    assert values is not None
    assert values.rows == [[0, 5.0], [1, 7.0], [2, 5.0]]


def test_table_tells_how_many_rows_there_are() -> None:
    values = series_chart(panel([1.0] * 250)).values
    assert values is not None
    assert (len(values.rows), values.steps) == (TABLE_ROWS, 250)


def test_fifty_lines_look_different() -> None:
    panel_of_fifty = {"x": [0, 1], "x_label": "", "lines": [{"name": str(n), "y": [0, n]} for n in range(50)]}
    looks = {(curve.colour, curve.dash) for curve in series_chart(panel_of_fifty).curves}
    assert len(looks) == 50
    assert (colour(0), dash(0)) == ("c0", "")


def test_curve_stays_inside_frame() -> None:
    (curve,) = series_chart(panel([5.0, -3.0, 100.0])).curves
    points = [tuple(map(float, point.split(","))) for point in curve.pieces[0].split()]
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for x, y in points)


def histogram(counts: list[int]) -> dict[str, object]:
    edges = [0.0, 1e-9, 1e-8, 1e-7]
    return {
        "edges": edges,
        "log_x": True,
        "groups": [{"name": "a", "counts": counts}, {"name": "b", "counts": [0, 1, 0]}],
    }


def test_wide_counts_are_drawn_logarithmic() -> None:
    assert histogram_chart(histogram([1, 20, 90])).y_note == "count"
    chart = histogram_chart(histogram([1, 20, 278000]))
    assert chart.y_note == "count (log scale)"
    heights = {bar.title: bar.height for bar in chart.bars}
    assert 0 < heights["a: 1 from 0 to 1e-9"] < heights["a: 278,000 from 1e-8 to 1e-7"]


def test_groups_stand_side_by_side() -> None:
    bars = [bar for bar in histogram_chart(histogram([1, 20, 90])).bars if "from 1e-9 to" in bar.title]
    first, second = sorted(bars, key=lambda bar: bar.x)
    assert first.x + first.width <= second.x + 0.2
    assert {first.colour, second.colour} == {"c0", "c1"}
