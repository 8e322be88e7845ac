"""Status of the service: problems that keep runs from starting, workers, the queue, versions and free disk."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from pydantic import Field
from sqlalchemy import Engine, func
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session, col, select

from app.clock import now, rfc3339
from app.db import ASIDE_MS, database_time, first_line, put, read_session, why_unavailable, write_session
from app.documents import Document
from app.runs.models import Meta, Run, WorkerRow
from app.runs.states import FINAL, State
from app.runs.store import why_waiting
from app.runs.workers import WORKER_FRESH_SECONDS, live_workers
from app.schema import schema_versions
from app.settings import Settings
from app.storage.disk import free_bytes

PROBE_KEY: Final = "readiness_probe"
FRESH_SECONDS: Final = 5.0
"""How long a test write to the database counts: monitors ask often, and each test takes the write lock."""
MOST_WAITING: Final = 50
"""Maximum number of waiting runs listed; their count is always complete."""


class Shortfall(Document):
    """One problem that keeps runs from being recorded or started."""

    code: str = Field(description="database_unavailable, no_worker or disk_low")
    detail: str


class LiveWorker(Document):
    """A worker process and what it can run."""

    pid: int
    host: str
    devices: dict[str, Any] | None = Field(description="What it found on its machine; null until the first probe.")
    kinds: list[str]
    targets: list[str]

    @classmethod
    def of(cls, row: WorkerRow) -> Self:
        """Return the document of a worker."""
        return cls(**{name: getattr(row, name) for name in cls.model_fields})


class WorkerDocument(LiveWorker):
    """A worker process and the age of its last heartbeat."""

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
    program: str = Field(description="The newest version this program supports.")


class Disk(Document):
    """Free disk by directory."""

    free_bytes: dict[str, int]
    min_free_bytes: int


class StatusDocument(Document):
    """Status of the service."""

    ready: bool
    checked_at: str = Field(description="Time of the last test write to the database; at most one in five seconds.")
    shortfalls: list[Shortfall]
    workers: list[WorkerDocument]
    queue: list[WaitingRun] = Field(description="The first 50.")
    waiting: int
    running: int
    versions: SchemaVersions | None = Field(alias="schema")
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Writable:
    """Outcome of a test write to the database."""

    checked_at: datetime
    fault: str | None
    """Why it cannot be written; None if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether runs can be recorded and executed."""

    shortfalls: list[Shortfall]
    """Most severe first; empty means ready."""
    workers: list[LiveWorker]
    """Live workers that have listed their devices."""
    checked_at: datetime
    """Time of the last test write to the database."""


class WriteProbe:
    """Whether the database can be written: tested at most once in FRESH_SECONDS, for any number of requests."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime] = now) -> None:
        self._engine, self._clock = engine, clock
        self._lock = threading.Lock()
        self._found: Writable | None = None

    def look(self) -> Writable:
        """Return the last outcome, or a new one if the last is too old."""
        with self._lock:  # concurrent requests wait for this answer instead of testing, too
            at = self._clock()
            if self._found is None or not 0 <= (at - self._found.checked_at).total_seconds() < FRESH_SECONDS:
                self._found = Writable(checked_at=at, fault=self._try(at.isoformat()))
            return self._found

    def _try(self, value: str) -> str | None:
        # A different value each time: an unchanged row would not be written.
        try:
            with write_session(self._engine, patience_ms=ASIDE_MS) as session:
                put(session, Meta(key=PROBE_KEY, value=value))
        except SQLAlchemyError as error:
            return _first_line(error)
        return None


def readiness(engine: Engine, settings: Settings, probe: WriteProbe) -> Readiness:
    """Test whether the database can be written, look for workers, and measure free disk."""
    found = probe.look()
    fault = found.fault
    workers: list[LiveWorker] = []
    try:
        with read_session(engine) as session:
            workers = [LiveWorker.of(row) for row in live_workers(session) if row.devices is not None]
    except SQLAlchemyError as error:
        fault = fault or _first_line(error)
    if fault is not None:
        missing = Shortfall(code="database_unavailable", detail=f"the database cannot be written: {fault}")
        return Readiness(shortfalls=[missing], workers=[], checked_at=found.checked_at)
    shortfalls = []
    if not workers:
        detail = "no worker has a fresh heartbeat and has listed its devices: start `ddp-audit worker`, or wait for it"
        shortfalls.append(Shortfall(code="no_worker", detail=detail))
    shortfalls += _disk_shortfalls(settings)
    return Readiness(shortfalls=shortfalls, workers=workers, checked_at=found.checked_at)


def _first_line(error: SQLAlchemyError) -> str:
    return (why_unavailable(error) or first_line(error))[:200]


def _disk_shortfalls(settings: Settings) -> list[Shortfall]:
    return [
        Shortfall(
            code="disk_low",
            detail=f"the {name} directory has {free} bytes free, DDP_AUDIT_MIN_FREE_BYTES requires "
            f"{settings.min_free_bytes}: `ddp-audit usage` and `ddp-audit retention` show what could be removed",
        )
        for name, free in free_bytes(settings).items()
        if free < settings.min_free_bytes
    ]


def standing(engine: Engine, settings: Settings, probe: WriteProbe) -> StatusDocument:
    """Return the status of the service, as far as its database is available."""
    found = readiness(engine, settings, probe)
    document = StatusDocument(
        ready=not found.shortfalls,
        checked_at=rfc3339(found.checked_at),
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
    except SQLAlchemyError:  # reported above: the database is unavailable
        return document
    known = {"workers": workers, "queue": queue, "waiting": waiting, "running": running}
    return document.model_copy(update={**known, "versions": SchemaVersions(database=present, program=newest)})


def _workers(session: Session) -> list[WorkerDocument]:
    rows = session.exec(select(WorkerRow).order_by(col(WorkerRow.heartbeat_at).desc(), col(WorkerRow.id)))
    moment = database_time(session)
    return [_worker(row, moment) for row in rows]


def _worker(row: WorkerRow, moment: datetime) -> WorkerDocument:
    age = max(0.0, (moment - row.heartbeat_at).total_seconds())
    return WorkerDocument(
        **dict(LiveWorker.of(row)),
        started_at=rfc3339(row.started_at),
        heartbeat_at=rfc3339(row.heartbeat_at),
        heartbeat_seconds=round(age, 1),
        fresh=age <= WORKER_FRESH_SECONDS,
    )


def _counts(session: Session) -> tuple[int, int]:
    """Return how many runs wait, and how many have started and not ended."""
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
