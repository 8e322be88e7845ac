"""What ranks use of their machine over time: looked at from outside by pid, a few hundred samples each however long."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Engine, delete, insert
from sqlalchemy.exc import OperationalError
from sqlmodel import Session, col, select

from app.db import write_session
from app.runs.models import RankUsage, Run
from worker.executors.local import processes
from worker.executors.local.processes import PROC
from worker.gpus import GpuUse
from worker.lines import Heard
from worker.log import log

SAMPLE_SECONDS: Final = 2.0
"""Between two looks at first; doubled whenever the samples of an attempt are thinned out."""
MOST_MOMENTS: Final = 360
"""Of one attempt; a day then ends at one look in about four minutes."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one process has used."""

    start: int
    """Clock ticks since boot: pid and start together name a process."""
    cpu_seconds: float
    rss_bytes: int


def use_of(pid: int) -> Use | None:
    """Return what a living process has used, all its threads together; None when it is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold anything
    if fields[0] in processes.GONE_STATES:
        return None
    cpu = (int(fields[11]) + int(fields[12])) / TICKS
    return Use(start=int(fields[19]), cpu_seconds=cpu, rss_bytes=int(fields[21]) * PAGE_BYTES)


class UsageLog:
    """Samples of the ranks of one attempt, in the database."""

    def __init__(self, engine: Engine, *, run_id: int, worker_id: str, stage: str, attempt: int, marker: str) -> None:
        self._engine, self._run_id, self._worker_id = engine, run_id, worker_id
        self._stage, self._attempt, self._marker = stage, attempt, marker
        self._starts: dict[int, int] = {}
        """pid -> start of the process that is known to be a rank."""
        self._seconds = SAMPLE_SECONDS
        self._due = 0.0
        self._count: int | None = None

    def tick(self, ranks: Mapping[int, Heard], gpus: Mapping[int, GpuUse] | None = None) -> None:
        """Sample every rank if it is time; a database that is busy costs this sample and nothing else.

        `gpus` holds the use of each rank's GPU by rank.
        """
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._seconds
        at = round(time.time(), 3)
        rows = [row for rank, heard in ranks.items() if (row := self._sample(at, rank, heard, gpus or {})) is not None]
        if not rows:
            return
        try:
            self._store(rows)
        except OperationalError as error:
            log.warning("a sample was not stored", action="usage-lost", run_id=self._run_id, error=str(error.orig))

    def _sample(self, at: float, rank: int, heard: Heard, gpus: Mapping[int, GpuUse]) -> RankUsage | None:
        if heard.pid is None or heard.ended:
            return None
        use = use_of(heard.pid)
        if use is None or not self._is_rank(heard.pid, use):
            return None
        gpu = gpus.get(rank)
        return RankUsage(
            run_id=self._run_id,
            stage=self._stage,
            attempt=self._attempt,
            rank=rank,
            at=at,
            cpu_seconds=use.cpu_seconds,
            rss_bytes=use.rss_bytes,
            gpu_bytes=None if gpu is None else gpu.bytes,
            gpu_percent=None if gpu is None else gpu.percent,
        )

    def _is_rank(self, pid: int, use: Use) -> bool:
        # A pid from a file names nothing for certain: it may be another machine's, or given out again.
        known = self._starts.get(pid)
        if known is None and processes.environment_of(pid).get(processes.MARKER) == self._marker:
            known = self._starts[pid] = use.start
        return known == use.start

    def _store(self, rows: Sequence[RankUsage]) -> None:
        with write_session(self._engine) as session:
            owner = session.exec(select(Run.worker_id).where(Run.id == self._run_id)).one_or_none()
            if owner != self._worker_id:
                return  # the reading of events finds that out and lets go of the run
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
        """Drop every second moment; what stays tells the work between as before, and the memory of its own moment."""
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
