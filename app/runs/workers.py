"""Which workers are alive: those whose heartbeat is fresh."""

from datetime import timedelta
from typing import Final

from sqlmodel import Session, col, select

from app.clock import now
from app.runs.models import WorkerRow

WORKER_FRESH_SECONDS: Final = 15.0
"""A worker whose heartbeat is older counts as gone."""


def live_workers(session: Session) -> list[WorkerRow]:
    """Return the workers whose heartbeat is fresh, the longest-running first."""
    oldest = now() - timedelta(seconds=WORKER_FRESH_SECONDS)
    query = select(WorkerRow).where(WorkerRow.heartbeat_at >= oldest).order_by(col(WorkerRow.started_at))
    return list(session.exec(query))
