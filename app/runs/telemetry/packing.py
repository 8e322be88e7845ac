"""Packed metric points: float64, little endian, null is distinguished from NaN by the NaN's payload."""

import math
import struct
import sys
from array import array
from collections.abc import Iterable
from typing import Final

NULL_BITS: Final = struct.pack("<Q", 0x7FF8_0000_6E75_6C6C)
"""A quiet NaN that no arithmetic produces; its low bytes spell "null"."""
NULL: Final[float] = struct.unpack("<d", NULL_BITS)[0]
"""Null as a float: put it into a list of values to be packed."""


def pack(values: Iterable[float]) -> bytes:
    """Return `values` as float64, little endian, 8 bytes each; `NULL` stands for null."""
    packed = array("d", values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(steps: bytes, points: bytes) -> tuple[list[float], list[float | None]]:
    """Return (steps, values) of one chunk; null is None, NaN and the infinities are floats.

    Raises ValueError if the two do not contain equally many complete numbers.
    """
    if len(steps) != len(points):
        raise ValueError(f"a chunk contains {len(steps)} bytes of steps and {len(points)} bytes of values")
    raw = _floats(points)
    values: list[float | None] = list(raw)
    if not math.isnan(sum(raw)):
        return _floats(steps), values  # any NaN, including a null, would have made the sum NaN
    for index, value in enumerate(raw):
        if value != value and points[index * 8 : index * 8 + 8] == NULL_BITS:  # noqa: PLR0124  # NaN
            values[index] = None
    return _floats(steps), values


def _floats(data: bytes) -> list[float]:
    unpacked = array("d")
    unpacked.frombytes(data)
    if sys.byteorder == "big":
        unpacked.byteswap()
    return unpacked.tolist()
