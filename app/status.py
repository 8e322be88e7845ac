"""How the service stands: what keeps runs from starting, workers, the queue, versions and free disk."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Engine, func
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, select

from app.clock import now, rfc3339
from app.db import read_session, write_session
from app.runs.models import Meta, Run, WorkerRow
from app.runs.states import FINAL, State
from app.runs.store import why_waiting
from app.runs.workers import WORKER_FRESH_SECONDS, live_workers
from app.schema import schema_versions
from app.settings import Settings
from app.storage.disk import free_bytes

PROBE_KEY: Final = "readiness_probe"
MOST_WAITING: Final = 50
"""Waiting runs listed; their number is given whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One thing that keeps runs from being recorded or started."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether runs can be recorded and executed."""

    shortfalls: list[Shortfall]
    """The gravest first; empty means ready."""
    workers: list[dict[str, Any]]
    """Live workers that have listed their devices."""


def readiness(engine: Engine, settings: Settings) -> Readiness:
    """Write something, look for workers, and measure the disk."""
    try:
        _write_something(engine)
        with read_session(engine) as session:
            workers = [_live(row) for row in live_workers(session) if row.devices is not None]
    except SQLAlchemyError as error:
        detail = f"the database cannot be written: {str(error).splitlines()[0][:200]}"
        return Readiness(shortfalls=[Shortfall(code="database_unavailable", detail=detail)], workers=[])
    shortfalls = []
    if not workers:
        detail = "no worker with a fresh heartbeat that lists its devices: start `ddp-audit worker`, or wait for it"
        shortfalls.append(Shortfall(code="no_worker", detail=detail))
    shortfalls += _disk_shortfalls(settings)
    return Readiness(shortfalls=shortfalls, workers=workers)


def _write_something(engine: Engine) -> None:
    with write_session(engine) as session:
        session.merge(Meta(key=PROBE_KEY, value="written"))


def _live(row: WorkerRow) -> dict[str, Any]:
    return {"pid": row.pid, "host": row.host, "devices": row.devices, "kinds": row.kinds, "targets": row.targets}


def _disk_shortfalls(settings: Settings) -> list[Shortfall]:
    return [
        Shortfall(
            code="disk_low",
            detail=f"the {name} directory has {free} bytes free, DDP_AUDIT_MIN_FREE_BYTES asks for "
            f"{settings.min_free_bytes}: `ddp-audit usage` and `ddp-audit retention` show what could go",
        )
        for name, free in free_bytes(settings).items()
        if free < settings.min_free_bytes
    ]


def standing(engine: Engine, settings: Settings) -> dict[str, Any]:
    """Return `{ready, shortfalls, workers, queue, waiting, running, schema, disk}`; see `GET /status`."""
    found = readiness(engine, settings)
    document: dict[str, Any] = {
        "ready": not found.shortfalls,
        "shortfalls": [{"code": item.code, "detail": item.detail} for item in found.shortfalls],
        "workers": [],
        "queue": [],
        "waiting": 0,
        "running": 0,
        "schema": None,
        "disk": {"free_bytes": free_bytes(settings), "min_free_bytes": settings.min_free_bytes},
    }
    try:
        with read_session(engine) as session:
            document |= {"workers": _workers(session), **_queue(session)}
        present, newest = schema_versions(engine)
    except SQLAlchemyError:  # told above: the database is away
        return document
    return {**document, "schema": {"database": present, "program": newest}}


def _workers(session: Session) -> list[dict[str, Any]]:
    rows = session.exec(select(WorkerRow).order_by(col(WorkerRow.heartbeat_at).desc(), col(WorkerRow.id)))
    return [_worker(row) for row in rows]


def _worker(row: WorkerRow) -> dict[str, Any]:
    age = max(0.0, (now() - row.heartbeat_at).total_seconds())
    return {
        **_live(row),
        "started_at": rfc3339(row.started_at),
        "heartbeat_at": rfc3339(row.heartbeat_at),
        "heartbeat_seconds": round(age, 1),
        "fresh": age <= WORKER_FRESH_SECONDS,
    }


def _queue(session: Session) -> dict[str, Any]:
    alive = select(func.count()).select_from(Run).where(col(Run.deleting).is_(False))
    waiting = session.exec(alive.where(Run.state == State.QUEUED)).one()
    open_runs = session.exec(alive.where(col(Run.state).not_in(FINAL))).one()
    query = select(Run).where(Run.state == State.QUEUED, col(Run.deleting).is_(False)).order_by(col(Run.id))
    working = bool(live_workers(session))
    items = [
        {
            "id": run.id,
            "name": run.name,
            "kind": run.kind,
            "preset": run.preset,
            "created_at": rfc3339(run.created_at),
            "position": place,
            "why": why_waiting(run, alive=working),
        }
        for place, run in enumerate(session.exec(query.limit(MOST_WAITING)), start=1)
    ]
    return {"queue": items, "waiting": waiting, "running": open_runs - waiting}
