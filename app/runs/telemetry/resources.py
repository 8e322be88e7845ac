"""Resource use of ranks over time: CPU, memory, and GPU if there was one."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from pydantic import Field
from sqlalchemy import Select, func, select
from sqlmodel import Session, col

from app.clock import rfc3339
from app.documents import Document
from app.runs.models import RankUsage, Run

Place = tuple[str, int, int]
"""Stage, attempt, rank."""


class Sample(NamedTuple):
    """Columns of one row, without its run: a page reads thousands of rows, and full rows cost several times as much."""

    stage: str
    attempt: int
    rank: int
    at: float
    cpu_seconds: float
    rss_bytes: int
    gpu_bytes: int | None
    gpu_percent: float | None


class ResourceSeries(Document):
    """Resource use of one rank of one stage attempt; the lists are equally long."""

    stage: str
    attempt: int
    rank: int
    seconds: list[float] = Field(description="Since `since`.")
    cpu_percent: list[float | None] = Field(
        description="100 is one core fully used since the previous sample; null for the first."
    )
    rss_bytes: list[int] = Field(description="Resident memory of the process.")
    gpu_bytes: list[int | None] = Field(description="In use on the rank's GPU by any process; null on a CPU.")
    gpu_percent: list[float | None]


class ResourceList(Document):
    """Resource use of a run's ranks over time, in the order of their stages."""

    since: str = Field(description="Start of the run, or its creation if it has not started.")
    series: list[ResourceSeries]


def resources(session: Session, run: Run, *, most: int | None = None) -> ResourceList:
    """Return one series per stage attempt and rank.

    Of more than `most` samples in all, only those of every second, third … moment are read.
    """
    since = run.started_at or run.created_at
    found: dict[Place, list[Sample]] = {}
    for row in session.execute(_rows(session, run, most)):
        sample = Sample(*row)
        found.setdefault((sample.stage, sample.attempt, sample.rank), []).append(sample)
    series = [_series(place, samples, since.timestamp()) for place, samples in found.items()]
    return ResourceList(since=rfc3339(since), series=series)


def _rows(session: Session, run: Run, most: int | None) -> Select[Any]:
    of_run = col(RankUsage.run_id) == run.id
    columns: list[Any] = [col(getattr(RankUsage, name)) for name in Sample._fields]
    rows = select(*columns).where(of_run)
    count = 0 if most is None else session.execute(select(func.count()).where(of_run)).scalar_one()
    if most is not None and count > most:
        moments = session.execute(
            select(col(RankUsage.at)).where(of_run).distinct().order_by(col(RankUsage.at))
        ).scalars()
        rows = rows.where(col(RankUsage.at).in_(moments.all()[:: -(-count // most)]))
    return rows.order_by(col(RankUsage.at), col(RankUsage.rank))


def _series(place: Place, samples: Sequence[Sample], since: float) -> ResourceSeries:
    stage, attempt, rank = place
    return ResourceSeries(
        stage=stage,
        attempt=attempt,
        rank=rank,
        seconds=[round(row.at - since, 3) for row in samples],
        cpu_percent=[None, *(_percent(before, row) for before, row in pairwise(samples))],
        rss_bytes=[row.rss_bytes for row in samples],
        gpu_bytes=[row.gpu_bytes for row in samples],
        gpu_percent=[row.gpu_percent for row in samples],
    )


def _percent(before: Sample, row: Sample) -> float:
    # The clock may have been set back between the two; a share of zero time is undefined.
    elapsed = row.at - before.at
    return round(100 * max(0.0, row.cpu_seconds - before.cpu_seconds) / elapsed, 1) if elapsed > 0 else 0.0
