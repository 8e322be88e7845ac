"""Resource usage of ranks over time, reported by the executor; a few hundred samples each, whatever the duration."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Engine, delete, insert
from sqlmodel import Session, col, select

from app.db import HOLD, Unavailable, first_line, write_session
from app.runs.models import RankUsage, Run
from worker.executors.base import RankUse
from worker.lines import Heard
from worker.log import log

SAMPLE_SECONDS: Final = 2.0
"""Initial sampling interval; doubled whenever the samples of an attempt are thinned out."""
MOST_MOMENTS: Final = 360
"""Maximum samples per attempt; after a day the interval is about four minutes."""


class UsageLog:
    """Samples of the ranks of one attempt, in the database."""

    def __init__(self, engine: Engine, *, run_id: int, worker_id: str, stage: str, attempt: int) -> None:
        self._engine, self._run_id, self._worker_id = engine, run_id, worker_id
        self._stage, self._attempt = stage, attempt
        self._seconds = SAMPLE_SECONDS
        self._due = 0.0
        self._count: int | None = None

    def tick(self, ranks: Mapping[int, Heard], look: Callable[[Mapping[int, str]], Mapping[int, RankUse]]) -> None:
        """Sample every active rank if it is time; if the database is busy, only this sample is lost.

        `look` returns the usage of ranks, given the device of each; see `Handle.usage`.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        at = round(time.time(), 3)
        working = {rank: heard.device for rank, heard in ranks.items() if heard.started and not heard.ended}
        rows = [self._row(at, rank, use) for rank, use in look(working).items() if rank in working] if working else []
        if not rows:
            return
        try:
            self._store(rows)
        except Unavailable as error:
            log.warning("a sample was not stored", action="usage-lost", run_id=self._run_id, error=first_line(error))

    def _row(self, at: float, rank: int, use: RankUse) -> RankUsage:
        return RankUsage(
            run_id=self._run_id,
            stage=self._stage,
            attempt=self._attempt,
            rank=rank,
            at=at,
            cpu_seconds=use.cpu_seconds,
            rss_bytes=use.rss_bytes,
            gpu_bytes=use.gpu_bytes,
            gpu_percent=use.gpu_percent,
        )

    def _store(self, rows: Sequence[RankUsage]) -> None:
        with write_session(self._engine) as session:
            held = select(Run.worker_id).where(Run.id == self._run_id).with_for_update(**HOLD)
            owner = session.exec(held).one_or_none()
            if owner != self._worker_id:
                return  # reading events detects that and releases the run
            session.execute(insert(RankUsage), [row.model_dump() for row in rows])
            if self._count is None:
                self._count = len(self._moments(session)) - 1
            self._count += 1
            if self._count > MOST_MOMENTS:
                self._thin(session)

    def _moments(self, session: Session) -> list[float]:
        moments = select(RankUsage.at).where(*self._place()).distinct().order_by(col(RankUsage.at))
        return list(session.exec(moments))

    def _thin(self, session: Session) -> None:
        """Drop every second sample; the rest still gives the work in between, and the memory at its own time."""
        moments = self._moments(session)
        dropped = moments[1::2]
        session.execute(delete(RankUsage).where(*self._place(), col(RankUsage.at).in_(dropped)))
        self._count = len(moments) - len(dropped)
        self._seconds = max(2 * self._seconds, (moments[-1] - moments[0]) / len(moments))

    def _place(self) -> tuple[ColumnElement[bool], ...]:
        return (
            col(RankUsage.run_id) == self._run_id,
            col(RankUsage.stage) == self._stage,
            col(RankUsage.attempt) == self._attempt,
        )
