"""Live workers: those whose heartbeat is fresh."""

import signal
import socket
from datetime import timedelta
from typing import Any, Final

import structlog
from sqlmodel import Session, col, select

from app.db import database_time
from app.host.processes import STOPPED_STATES, Identity
from app.runs.models import WorkerRow

log: Any = structlog.get_logger("app.workers")
WORKER_FRESH_SECONDS: Final = 15.0
"""A worker whose heartbeat is older counts as gone."""


OWN_RUN: Final = ["-"]
"""Published in place of kinds by a worker that only executes the run it recorded; not a valid kind name."""


def live_workers(session: Session) -> list[WorkerRow]:
    """Return the workers that live and take runs from the queue, the longest-running first."""
    return [worker for worker in all_live_workers(session) if worker.kinds != OWN_RUN]


def all_live_workers(session: Session) -> list[WorkerRow]:
    """Return every worker whose heartbeat is fresh, those too that carry out one run of their own and no other."""
    oldest = database_time(session) - timedelta(seconds=WORKER_FRESH_SECONDS)
    query = select(WorkerRow).where(WorkerRow.heartbeat_at >= oldest).order_by(col(WorkerRow.started_at))
    return list(session.exec(query))


def continue_stopped_workers(connection: Any) -> list[int]:
    """Continue the stopped workers of this host (SIGCONT) and return their pids.

    A worker stopped inside a write transaction blocks every other writer, and its runs cannot be taken over. Continuing
    a worker that was stopped elsewhere is harmless. `connection` must be outside any transaction.
    """
    query = "SELECT pid, pid_start, boot_id FROM worker WHERE host = ?"
    rows = connection.exec_driver_sql(query, (socket.gethostname(),)).all()
    continued = []
    for pid, start, boot in rows:
        worker = Identity(pid=int(pid), start=int(start), boot=str(boot))
        found = worker.stat()
        if found is not None and found.state in STOPPED_STATES and worker.send(signal.SIGCONT):
            continued.append(worker.pid)
    if continued:
        log.warning(
            "continued stopped workers: one may hold the database lock", action="workers-continued", pids=continued
        )
    return continued
