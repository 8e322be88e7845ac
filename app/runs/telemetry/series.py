"""Metric series of a run: reading the packed chunks, and down-sampling that keeps extremes."""

import math
from collections.abc import Sequence
from typing import Final

from pydantic import Field, SkipValidation
from sqlmodel import Session, col, select

from app.documents import Document
from app.runs.models import MetricChunk
from app.runs.telemetry.packing import unpack
from trainer.contract.events import encode_number

MAX_POINTS: Final = 100_000
DEFAULT_POINTS: Final = 2_000
FEWEST_POINTS: Final = 2
KEPT_PER_BUCKET: Final = 4

Place = tuple[str, int, str, int]
"""key, rank, stage, attempt: the identity of a series."""
Points = tuple[list[float], list[float | None]]
"""Steps and values; None is a null that the rank wrote, NaN a NaN."""
StepRange = tuple[float, float]
"""First and last step, both included."""
EVERY_STEP: Final[StepRange] = (-math.inf, math.inf)


class MetricSeries(Document):
    """One metric of one rank of one stage attempt; steps and values are equally long."""

    # Built by this module and passed through without validation: there may be a hundred thousand of each.
    key: str
    rank: int
    stage: str
    attempt: int
    steps: SkipValidation[list[float]]
    values: SkipValidation[list[float | str | None]] = Field(description="Non-finite values are given by name.")
    points: int = Field(description="Number of points in the requested range of steps.")
    thinned: bool = Field(description="Whether points were left out.")


class MetricList(Document):
    """The names of all metrics of a run, and the requested series."""

    keys: list[str]
    series: list[MetricSeries]


def metrics(
    session: Session,
    run_id: int,
    *,
    keys: Sequence[str] = (),
    rank: int | None = None,
    max_points: int = DEFAULT_POINTS,
    steps: StepRange = EVERY_STEP,
) -> MetricList:
    """Return every metric's name, and the requested series with at most `max_points` points each.

    Without `keys` every series is returned. Non-finite values are given by name, null is null. If points were left out
    (`thinned`), each section keeps its smallest and largest value and its first non-finite point. `points` counts those
    within the range of `steps`; a series without any there is left out.
    """
    found = read_series(session, run_id, keys=keys, rank=rank, steps=steps)
    series = [_series(place, points, max_points) for place, points in sorted(found.items())]
    return MetricList(keys=metric_keys(session, run_id), series=series)


def metric_keys(session: Session, run_id: int) -> list[str]:
    """Return the name of every metric of a run, sorted."""
    names = select(MetricChunk.key).where(MetricChunk.run_id == run_id).distinct().order_by(MetricChunk.key)
    return list(session.exec(names))


def read_series(
    session: Session,
    run_id: int,
    *,
    keys: Sequence[str] = (),
    rank: int | None = None,
    steps: StepRange = EVERY_STEP,
) -> dict[Place, Points]:
    """Return all points of each series within a range of steps, in the order in which they were written."""
    query = select(MetricChunk).where(MetricChunk.run_id == run_id)
    if keys:
        query = query.where(col(MetricChunk.key).in_(keys))
    if rank is not None:
        query = query.where(MetricChunk.rank == rank)
    found: dict[Place, Points] = {}
    for chunk in session.exec(query.order_by(col(MetricChunk.first_event_id))):
        more_steps, more_values = unpack(chunk.steps, chunk.points)
        if steps is not EVERY_STEP:
            more_steps, more_values = _within(more_steps, more_values, steps)
            if not more_steps:
                continue
        known = found.setdefault((chunk.key, chunk.rank, chunk.stage, chunk.attempt), ([], []))
        known[0].extend(more_steps)
        known[1].extend(more_values)
    return found


def _within(steps: list[float], values: list[float | None], wanted: StepRange) -> Points:
    low, high = wanted
    if low <= min(steps, default=low) and max(steps, default=high) <= high:
        return steps, values
    # Steps need not increase: a rank may repeat some after a restart.
    kept = [index for index, step in enumerate(steps) if low <= step <= high]
    return [steps[index] for index in kept], [values[index] for index in kept]


def _series(place: Place, points: Points, max_points: int) -> MetricSeries:
    steps, values = points
    kept = thin(values, max_points)
    key, rank, stage, attempt = place
    return MetricSeries(
        key=key,
        rank=rank,
        stage=stage,
        attempt=attempt,
        steps=[steps[index] for index in kept],
        values=[encode_number(values[index]) for index in kept],
        points=len(steps),
        thinned=len(kept) < len(steps),
    )


def thin(values: Sequence[float | None], most: int) -> Sequence[int]:
    """Return the indices to keep, in order, at most `most` (at least 2): all if they fit.

    Equal sections keep their first point, their smallest and largest finite value and their first non-finite point, or
    if there is none their first null; the last point of all is kept too. If fewer than 5 points may be kept, the
    extremes come first.
    """
    count, most = len(values), max(most, FEWEST_POINTS)
    if count <= most:
        return range(count)
    if most <= KEPT_PER_BUCKET:
        return sorted(_most_telling(values, most))
    buckets = (most - 1) // KEPT_PER_BUCKET
    kept = {count - 1}
    for bucket in range(buckets):
        stretch = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        kept |= _worth_keeping(values, stretch)
    return sorted(kept)


def _most_telling(values: Sequence[float | None], most: int) -> list[int]:
    finite = [(value, index) for index, value in enumerate(values) if value is not None and math.isfinite(value)]
    extremes = [min(finite)[1], max(finite)[1]] if finite else []
    return list(dict.fromkeys([*extremes, 0, len(values) - 1]))[:most]


def _worth_keeping(values: Sequence[float | None], stretch: range) -> set[int]:
    kept = {stretch.start}
    part = values[stretch.start : stretch.stop]
    numbers = [value for value in part if value is not None]
    # Detects any null or non-finite point; if there is none, the built-in min and max are much faster.
    if len(numbers) == len(part) and math.isfinite(sum(numbers)):
        return kept | {stretch.start + numbers.index(min(numbers)), stretch.start + numbers.index(max(numbers))}
    low = high = odd = null = -1
    for index in stretch:
        value = values[index]
        if value is None:
            null = index if null < 0 else null
            continue
        if not math.isfinite(value):
            odd = index if odd < 0 else odd
            continue
        if low < 0 or value < (values[low] or 0.0):
            low = index
        if high < 0 or value > (values[high] or 0.0):
            high = index
    return kept | ({low, high, odd if odd >= 0 else null} - {-1})
