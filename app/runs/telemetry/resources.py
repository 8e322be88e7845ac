"""What ranks used of their machine over time: CPU, memory, and the GPU where there was one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlmodel import Session, col

from app.clock import rfc3339
from app.runs.models import RankUsage, Run

Place = tuple[str, int, int]
"""Stage, attempt, rank."""


class Sample(NamedTuple):
    """One row without its run: a page reads thousands of them, and full rows would cost several times as much."""

    stage: str
    attempt: int
    rank: int
    at: float
    cpu_seconds: float
    rss_bytes: int
    gpu_bytes: int | None
    gpu_percent: float | None


def resources(session: Session, run: Run) -> dict[str, Any]:
    """Return `{since, series}`: one series per stage attempt and rank, in the order they began.

    Each holds equally long lists: `seconds` since `since`, `cpu_percent` (100 is one core kept busy since the sample
    before, None for the first), `rss_bytes`, and `gpu_bytes` and `gpu_percent` of the rank's GPU, None on a CPU.
    """
    since = run.started_at or run.created_at
    found: dict[Place, list[Sample]] = {}
    columns = (col(getattr(RankUsage, name)) for name in Sample._fields)
    rows = select(*columns).where(col(RankUsage.run_id) == run.id).order_by(col(RankUsage.at), col(RankUsage.rank))
    for row in session.execute(rows):
        sample = Sample(*row)
        found.setdefault((sample.stage, sample.attempt, sample.rank), []).append(sample)
    return {
        "since": rfc3339(since),
        "series": [_series(place, samples, since.timestamp()) for place, samples in found.items()],
    }


def _series(place: Place, samples: Sequence[Sample], since: float) -> dict[str, Any]:
    stage, attempt, rank = place
    return {
        "stage": stage,
        "attempt": attempt,
        "rank": rank,
        "seconds": [round(row.at - since, 3) for row in samples],
        "cpu_percent": [None, *(_percent(before, row) for before, row in pairwise(samples))],
        "rss_bytes": [row.rss_bytes for row in samples],
        "gpu_bytes": [row.gpu_bytes for row in samples],
        "gpu_percent": [row.gpu_percent for row in samples],
    }


def _percent(before: Sample, row: Sample) -> float:
    # The clock may have been set back between the two; a share of no time is no number.
    elapsed = row.at - before.at
    return round(100 * max(0.0, row.cpu_seconds - before.cpu_seconds) / elapsed, 1) if elapsed > 0 else 0.0
