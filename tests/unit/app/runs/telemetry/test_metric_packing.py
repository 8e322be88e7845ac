"""Packed metric points: every kind of number is restored unchanged."""

import math

import pytest

from app.runs.telemetry.packing import NULL, pack, unpack


def test_numbers_come_back_exactly() -> None:
    values = [0.1, -0.0, 1e308, 5e-324, math.inf, -math.inf, 3.0]
    steps, points = unpack(pack(range(7)), pack(values))
    assert steps == [0, 1, 2, 3, 4, 5, 6]
    assert points == values
    assert points[1] is not None
    assert math.copysign(1, points[1]) == -1


def test_null_is_no_nan() -> None:
    _, points = unpack(pack([1, 2, 3]), pack([math.nan, NULL, 2.0]))
    assert points[0] is not None
    assert math.isnan(points[0])
    assert points[1:] == [None, 2.0]


def test_uneven_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes of steps and 8 bytes"):
        unpack(pack([1, 2]), pack([1]))


def test_packing_is_eight_bytes_little_endian() -> None:
    assert pack([1.0]) == b"\x00\x00\x00\x00\x00\x00\xf0\x3f"
