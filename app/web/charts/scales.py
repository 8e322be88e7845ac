"""Axes of server-drawn charts: positions and round tick values on a linear or logarithmic scale."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values from `low`..`high` to positions `start`..`end` (SVG units)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of `value`, rounded to a tenth."""
        low, high, at = (self._shape(item) for item in (self.low, self.high, value))
        return round(self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start), 1)

    def _shape(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, most: int = 5) -> list[float]:
        """Return about `most` round values within the range."""
        return _log_ticks(self.low, self.high, most) if self.log else _linear_ticks(self.low, self.high, most)


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [float(f"{(first + index) * step:.12g}") for index in range(count)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    return [10.0**power for power in range(first, last + 1, step)]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return (low, high) around finite `values`, widened a little; (0, 1) if there are none."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low == high:
        margin = abs(low) * 0.1 or 0.5
        return low - margin, high + margin
    margin = (high - low) * 0.04
    return low - margin, high + margin
