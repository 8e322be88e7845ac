"""The chart of a check over runs, and what is said about the newest run."""

from typing import Any

import pytest

from app.web.charts.trend import BOTTOM, TOP, reading, trend_chart


def item(run_id: int, measured: Any, *, limit: Any = 1.0, passed: bool | None = None) -> dict[str, Any]:
    numbers = isinstance(measured, float) and isinstance(limit, float) and limit
    judged = measured <= limit if passed is None and numbers else passed
    margin = measured / limit if numbers else None
    return {"run_id": run_id, "name": "", "measured": measured, "limit": limit, "passed": judged, "margin": margin}


def items(*measured: Any) -> list[dict[str, Any]]:
    return [item(run_id, value) for run_id, value in enumerate(measured, start=1)]


def test_far_values_need_a_logarithm() -> None:
    near, far = trend_chart(items(0.5, 0.6, 0.4)), trend_chart(items(1e-8, 1e-8, 0.02))
    assert not near.log
    assert far.log
    low, high = far.points[0].y, far.points[2].y
    limit = float(far.limits[0].split(",")[-1])
    assert TOP <= high < low <= BOTTOM
    assert TOP < limit < high, "the limit 1 lies above an error of 0.02"


def test_zero_stands_at_the_foot_of_a_logarithm() -> None:
    chart = trend_chart(items(0.0, 1e-8))
    assert chart.log
    assert chart.points[0].y == BOTTOM


def test_odd_numbers_break_the_line() -> None:
    chart = trend_chart([*items(0.1, 0.2), item(3, "NaN", passed=False), item(4, None), *items(0.1, 0.2)])
    assert len(chart.curve) == 2
    assert [point.mark for point in chart.points] == ["pass", "pass", "fail", "pass", "pass"]
    assert chart.points[2].y == TOP
    assert "measured NaN" in chart.points[2].title
    assert chart.failed == 1


def test_many_runs_get_few_labels() -> None:
    chart = trend_chart(items(*[0.5] * 200))
    assert len(chart.points) == 200
    assert len(chart.x_ticks) <= 12
    assert chart.x_ticks[0][1] == "1"


@pytest.mark.parametrize(
    ("measured", "css", "words"),
    [
        ((0.1, 0.1, 0.1), "pass", "passes with 10.0 % of its limit"),
        ((0.1, 0.1, 0.5), "warn", "5 times what was usual"),
        ((0.1, 0.1, 0.3), "pass", "30.0 %"),
        ((0.1, 0.1, 2.0), "fail", "fails with 200.0 % of its limit"),
        ((0.1, 0.1, 50.0), "fail", "fails at 50 times its limit"),
        ((0.1,), "pass", "10.0 %"),
    ],
)
def test_reading_tells_the_newest(measured: tuple[float, ...], css: str, words: str) -> None:
    found = reading(items(*measured))
    assert found.css == css
    assert words in found.title


def test_reading_counts_failures_in_a_row() -> None:
    found = reading(items(0.1, 3.0, 0.2, 2.0, 2.0, 2.0))
    assert "3 runs in a row, since run 4" in found.text
    assert "15.0 %" in found.text, "the median of the passing ones, 10 % and 20 %"
    assert "the only one so far" in reading(items(2.0)).text
    assert "The one before it did not" in reading(items(0.1, 2.0)).text


def test_reading_without_numbers_says_no_share() -> None:
    found = reading([item(1, None, limit=None, passed=True), item(2, None, limit=None, passed=None)])
    assert found.css == "inconclusive"
    assert "%" not in found.title + found.text
