"""Finds runs whose worker is gone, by lease, heartbeat and process, and takes them over with a guarded update."""

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Engine, update
from sqlmodel import Session, col, select

from app.clock import now
from app.db import read_session, write_session
from app.host.processes import Identity, boot_id
from app.runs import queue
from app.runs.models import Run, WorkerRow
from app.runs.workers import WORKER_FRESH_SECONDS
from worker.claim import ACTIVE, Me, lease
from worker.log import log


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A run without a live worker."""

    run_id: int
    worker_id: str | None


def orphans(engine: Engine, me: Me) -> list[Orphan]:
    """Return the active runs whose worker is certainly gone, or whose lease and heartbeat have expired."""
    with read_session(engine) as session:
        active = session.exec(select(Run).where(col(Run.state).in_(ACTIVE), col(Run.worker_id) != me.id)).all()
        nobodys = session.exec(select(Run).where(col(Run.state).in_(ACTIVE), col(Run.worker_id).is_(None))).all()
        return [
            Orphan(run_id=queue.number_of(run), worker_id=run.worker_id)
            for run in (*active, *nobodys)
            if _is_gone(session, run, me)
        ]


def _is_gone(session: Session, run: Run, me: Me) -> bool:
    row = session.get(WorkerRow, run.worker_id) if run.worker_id else None
    expired = run.lease_until is None or run.lease_until <= now()
    if row is None:
        return expired
    if row.host == me.host and _process_is_gone(row):
        return True
    silent = row.heartbeat_at < now() - timedelta(seconds=WORKER_FRESH_SECONDS)
    return expired and silent


def _process_is_gone(row: WorkerRow) -> bool:
    if row.boot_id != boot_id():
        return True
    return not Identity(pid=row.pid, start=int(row.pid_start), boot=row.boot_id).alive


def adopt(engine: Engine, me: Me, orphan: Orphan) -> bool:
    """Take over a run and return whether that succeeded; of several workers exactly one does."""
    before = col(Run.worker_id).is_(None) if orphan.worker_id is None else col(Run.worker_id) == orphan.worker_id
    with write_session(engine) as session:
        taken = session.execute(
            update(Run)
            .where(col(Run.id) == orphan.run_id, col(Run.state).in_(ACTIVE), before)
            .values(worker_id=me.id, lease_until=lease())
        )
        adopted = taken.rowcount == 1  # type: ignore[attr-defined]
    if adopted:
        log.warning("took over a run", action="run-adopted", run_id=orphan.run_id, earlier_worker=orphan.worker_id)
    return bool(adopted)
