"""How the service stands: what keeps runs from starting, workers, the queue, versions and free disk."""

from dataclasses import dataclass
from typing import Any, Final, Self

from pydantic import Field
from sqlalchemy import Engine, func
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, select

from app.clock import now, rfc3339
from app.db import read_session, write_session
from app.documents import Document
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


class Shortfall(Document):
    """One thing that keeps runs from being recorded or started."""

    code: str = Field(description="database_unavailable, no_worker or disk_low")
    detail: str


class LiveWorker(Document):
    """A worker process and what it can run."""

    pid: int
    host: str
    devices: dict[str, Any] | None = Field(description="What it sees of its machine; null until it has looked.")
    kinds: list[str]
    targets: list[str]

    @classmethod
    def of(cls, row: WorkerRow) -> Self:
        """Return the document of a worker."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class WorkerDocument(LiveWorker):
    """A worker process and when it was heard last."""

    started_at: str
    heartbeat_at: str
    heartbeat_seconds: float = Field(description="Age of the newest heartbeat.")
    fresh: bool


class WaitingRun(Document):
    """A run in the queue."""

    id: int
    name: str
    kind: str
    preset: str | None
    created_at: str
    position: int = Field(description="1 is next.")
    why: str


class SchemaVersions(Document):
    """Schema of the database."""

    database: str | None
    program: str = Field(description="The newest this program knows.")


class Disk(Document):
    """Free disk by directory."""

    free_bytes: dict[str, int]
    min_free_bytes: int


class StatusDocument(Document):
    """How the service stands."""

    ready: bool
    shortfalls: list[Shortfall]
    workers: list[WorkerDocument]
    queue: list[WaitingRun] = Field(description="The first 50.")
    waiting: int
    running: int
    versions: SchemaVersions | None = Field(alias="schema")
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether runs can be recorded and executed."""

    shortfalls: list[Shortfall]
    """The gravest first; empty means ready."""
    workers: list[LiveWorker]
    """Live workers that have listed their devices."""


def readiness(engine: Engine, settings: Settings) -> Readiness:
    """Write something, look for workers, and measure the disk."""
    try:
        _write_something(engine)
        with read_session(engine) as session:
            workers = [LiveWorker.of(row) for row in live_workers(session) if row.devices is not None]
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


def standing(engine: Engine, settings: Settings) -> StatusDocument:
    """Return how the service stands, as far as its database answers."""
    found = readiness(engine, settings)
    document = StatusDocument(
        ready=not found.shortfalls,
        shortfalls=found.shortfalls,
        workers=[],
        queue=[],
        waiting=0,
        running=0,
        versions=None,
        disk=Disk(free_bytes=free_bytes(settings), min_free_bytes=settings.min_free_bytes),
    )
    try:
        with read_session(engine) as session:
            workers, queue = _workers(session), _queue(session)
            waiting, running = _counts(session)
        present, newest = schema_versions(engine)
    except SQLAlchemyError:  # told above: the database is away
        return document
    known = {"workers": workers, "queue": queue, "waiting": waiting, "running": running}
    return document.model_copy(update={**known, "versions": SchemaVersions(database=present, program=newest)})


def _workers(session: Session) -> list[WorkerDocument]:
    rows = session.exec(select(WorkerRow).order_by(col(WorkerRow.heartbeat_at).desc(), col(WorkerRow.id)))
    return [_worker(row) for row in rows]


def _worker(row: WorkerRow) -> WorkerDocument:
    age = max(0.0, (now() - row.heartbeat_at).total_seconds())
    return WorkerDocument(
        **dict(LiveWorker.of(row)),
        started_at=rfc3339(row.started_at),
        heartbeat_at=rfc3339(row.heartbeat_at),
        heartbeat_seconds=round(age, 1),
        fresh=age <= WORKER_FRESH_SECONDS,
    )


def _counts(session: Session) -> tuple[int, int]:
    """Return how many runs wait, and how many have begun and not ended."""
    alive = select(func.count()).select_from(Run).where(col(Run.deleting).is_(False))
    waiting = session.exec(alive.where(Run.state == State.QUEUED)).one()
    return waiting, session.exec(alive.where(col(Run.state).not_in(FINAL))).one() - waiting


def _queue(session: Session) -> list[WaitingRun]:
    query = select(Run).where(Run.state == State.QUEUED, col(Run.deleting).is_(False)).order_by(col(Run.id))
    working = bool(live_workers(session))
    return [
        WaitingRun(
            id=run.id,
            name=run.name,
            kind=run.kind,
            preset=run.preset,
            created_at=rfc3339(run.created_at),
            position=place,
            why=why_waiting(run, alive=working),
        )
        for place, run in enumerate(session.exec(query.limit(MOST_WAITING)), start=1)
    ]
