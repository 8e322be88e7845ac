"""Finds runs whose worker is gone, by lease, heartbeat and process, and takes them over with a guarded update."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Engine, update
from sqlmodel import Session, col, select

from app.db import database_time, on_server, read_session, server_is_settled, write_session
from app.host.processes import Identity, boot_id
from app.runs import queue
from app.runs.models import Run, StageAttempt, WorkerRow
from app.runs.workers import WORKER_FRESH_SECONDS
from worker.claim import ACTIVE, Me, lease
from worker.log import log

HOST_SECONDS: Final = 300.0
"""How long the runs of a worker on another host wait for a worker there before they are given up as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A run without a live worker."""

    run_id: int
    worker_id: str | None


def orphans(engine: Engine, me: Me, *, settled: bool = True) -> list[Orphan]:
    """Return the active runs whose worker is certainly gone, or whose lease and heartbeat have expired.

    Unless `settled`, silence says nothing: the database has just come back, and other workers are about to report.
    """
    with read_session(engine) as session:
        active = session.exec(select(Run).where(col(Run.state).in_(ACTIVE), col(Run.worker_id) != me.id)).all()
        nobodys = session.exec(select(Run).where(col(Run.state).in_(ACTIVE), col(Run.worker_id).is_(None))).all()
        return [
            Orphan(run_id=queue.number_of(run), worker_id=run.worker_id)
            for run in (*active, *nobodys)
            if _is_gone(session, run, me, settled=settled)
        ]


def _is_gone(session: Session, run: Run, me: Me, *, settled: bool) -> bool:
    row = session.get(WorkerRow, run.worker_id) if run.worker_id else None
    moment = database_time(session)
    if row is not None and row.host == me.host and _process_is_gone(row):
        return True
    # Processes on another host can be ended and read only there: its own worker gets time to come back.
    patience = timedelta(seconds=HOST_SECONDS if _runs_elsewhere(session, run) else 0)
    expired = run.lease_until is None or run.lease_until + patience <= moment
    if row is None:
        return expired
    silent = row.heartbeat_at + patience < moment - timedelta(seconds=WORKER_FRESH_SECONDS)
    return expired and silent and settled and server_is_settled(session, WORKER_FRESH_SECONDS)


def _process_is_gone(row: WorkerRow) -> bool:
    return row.boot_id == boot_id() and not Identity(pid=row.pid, start=int(row.pid_start), boot=row.boot_id).alive


def _runs_elsewhere(session: Session, run: Run) -> bool:
    """Return whether the run has an attempt that was started under another boot, so maybe on another host."""
    if not on_server(session):
        return False
    open_attempts = select(StageAttempt.reference).where(StageAttempt.run_id == run.id, StageAttempt.state == "running")
    boots = {str(reference["boot"]) for reference in session.exec(open_attempts) if reference and "boot" in reference}
    return bool(boots - {boot_id()})


def adopt(engine: Engine, me: Me, orphan: Orphan) -> bool:
    """Take over a run and return whether that succeeded; of several workers exactly one does."""
    before = col(Run.worker_id).is_(None) if orphan.worker_id is None else col(Run.worker_id) == orphan.worker_id
    with write_session(engine) as session:
        taken = session.execute(
            update(Run)
            .where(col(Run.id) == orphan.run_id, col(Run.state).in_(ACTIVE), before)
            .values(worker_id=me.id, lease_until=lease(session))
        )
        adopted = taken.rowcount == 1  # type: ignore[attr-defined]
    if adopted:
        log.warning("took over a run", action="run-adopted", run_id=orphan.run_id, earlier_worker=orphan.worker_id)
    return bool(adopted)
