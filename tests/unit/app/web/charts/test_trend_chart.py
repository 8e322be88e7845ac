"""The chart of a check over runs, and the summary of the newest run."""

from typing import Any

import pytest

from app.web.charts.trend import BOTTOM, TOP, reading, trend_chart
from trainer.contract.result import Relation, fits


def item(run_id: int, measured: Any, *, limit: Any = 1.0, passed: bool | None = None, **read: Any) -> dict[str, Any]:
    judged = fits(measured, limit, Relation(read.get("relation", "at_most")), strict=read.get("strict", False))
    passed = judged if passed is None else passed
    return {"run_id": run_id, "name": "", "measured": measured, "limit": limit, "passed": passed, **read}


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
        ((0.1, 0.1, 0.5), "warn", "5 times the usual share"),
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
    assert "the only run so far" in reading(items(2.0)).text
    assert "The previous run did not" in reading(items(0.1, 2.0)).text


def test_reading_without_numbers_says_no_share() -> None:
    found = reading([item(1, None, limit=None, passed=True), item(2, None, limit=None, passed=None)])
    assert found.css == "inconclusive"
    assert "%" not in found.title + found.text


def counts(*measured: Any, expected: int = 18) -> list[dict[str, Any]]:
    return [item(place, value, limit=expected, relation="equal") for place, value in enumerate(measured, start=1)]


def controls(*measured: Any) -> list[dict[str, Any]]:
    return [
        item(place, value, limit=0.1, relation="at_least", strict=True) for place, value in enumerate(measured, start=1)
    ]


@pytest.mark.parametrize(
    ("shown", "css", "title", "text"),
    [
        (counts(18), "pass", "passes with the expected number", ""),
        (counts(18, 18), "pass", "passes with the expected number", "The previous run passed."),
        (counts(18, 21), "fail", "fails, 3 more than expected", "The previous run passed."),
        (counts(18, 15, 15), "fail", "fails, 3 less than expected", "2 runs in a row, since run 2."),
        (controls(2.1, 2.1, 2.1), "pass", "passes, 2 above its minimum", "were 2 above their minimum"),
        (controls(2.1, 2.1, 0.3), "warn", "passes, 0.2 above its minimum, 10.0 % of the usual margin", "were 2 above"),
        (controls(2.1, 2.1, 0.9), "pass", "passes, 0.8 above its minimum", "were 2 above"),
        (controls(2.1, 0.05), "fail", "fails, 0.05 below its minimum", "were 2 above"),
        (controls(2.1, 0.1), "fail", "fails at its minimum", "were 2 above"),
    ],
)
def test_reading_follows_the_relation(shown: list[dict[str, Any]], css: str, title: str, text: str) -> None:
    found = reading(shown)
    assert (found.css, found.title) == (css, f"The newest, run {len(shown)}, {title}")
    assert text in found.text
    assert "of its limit" not in found.title
    assert " its limit" not in found.title


def test_failure_with_the_expected_number() -> None:
    found = reading([*counts(18), item(2, 18, limit=18, passed=False, relation="equal")])
    assert found.title == "The newest, run 2, fails although its number is as expected"


def test_limit_is_called_by_what_it_is() -> None:
    assert trend_chart(items(0.1)).limit_name == "limit"
    assert trend_chart(counts(18)).limit_name == "expected"
    assert trend_chart(controls(2.0)).limit_name == "minimum"
    assert "measured 21, expected 18" in trend_chart(counts(21)).points[0].title
    assert trend_chart(controls(2.0)).points[0].title.endswith("measured 2, must exceed 0.1")
    assert trend_chart(items(0.5)).points[0].title.endswith("measured 0.5, must be at most 1, 50.0 % of it")


def test_old_rows_claim_nothing_wrong() -> None:
    # Recorded before checks had a relation: a control that passed at twenty times its limit.
    old = [item(1, 2.0, limit=0.1, passed=True), item(2, 2.0, limit=0.1, passed=True)]
    found, chart = reading(old), trend_chart(old)
    assert found.title == "The newest, run 2, passes"
    assert "limit 0.1" in chart.points[0].title
    assert not any("times" in text or "%" in text for text in (found.title, found.text, chart.points[0].title))
    mixed = reading([*old, *controls(0.3)])
    assert mixed.css == "pass", "old rows are not margins to compare with"
