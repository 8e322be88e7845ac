"""Thinning a series: few points, no extreme lost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.runs.telemetry.series import thin

NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.none())


@given(st.lists(NUMBERS, max_size=600), st.integers(2, 120))
def test_kept_points_are_few_and_ordered(values: list[float | None], most: int) -> None:
    kept = list(thin(values, most))
    assert len(kept) <= most
    assert kept == sorted(set(kept))
    assert all(0 <= index < len(values) for index in kept)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=600), st.integers(8, 120))
def test_extremes_and_ends_stay(values: list[float | None], most: int) -> None:
    kept = [values[index] for index in thin(values, most)]
    numbers = [value for value in values if value is not None]
    assert max(numbers) in kept
    assert min(numbers) in kept
    assert (kept[0], kept[-1]) == (values[0], values[-1])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60), st.integers(2, 7))
def test_fewest_points_are_extremes(values: list[float | None], most: int) -> None:
    kept = [values[index] for index in thin(values, most)]
    numbers = [value for value in values if value is not None]
    assert {min(numbers), max(numbers)} <= set(kept)


def test_ends_stay_where_four_may() -> None:
    assert list(thin([5.0, 9.0, 7.0, 1.0, 5.0], 4)) == [0, 1, 3, 4]
    assert list(thin([None] * 5, 4)) == [0, 4]


def test_short_series_is_untouched() -> None:
    assert list(thin([1.0] * 100, 100)) == list(range(100))
    assert len(thin([1.0] * 101, 100)) < 101


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, None])
def test_first_odd_point_stays(odd: float | None) -> None:
    values: list[float | None] = [0.5] * 1000
    values[371] = values[372] = odd
    kept = set(thin(values, 50))
    assert 371 in kept
    assert 372 not in kept


def test_null_hides_no_nan() -> None:
    values: list[float | None] = [0.5] * 1000
    values[370], values[371] = None, math.nan
    assert 371 in set(thin(values, 50))
