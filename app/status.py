"""How the service stands: what keeps runs from starting, workers, the queue, versions and free disk."""

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
from app.db import ASIDE_MS, read_session, write_session
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
"""How long one try at writing to the database is good for: monitors ask often, and each try takes the write lock."""
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
    checked_at: str = Field(description="When writing to the database was tried last; at most once in five seconds.")
    shortfalls: list[Shortfall]
    workers: list[WorkerDocument]
    queue: list[WaitingRun] = Field(description="The first 50.")
    waiting: int
    running: int
    versions: SchemaVersions | None = Field(alias="schema")
    disk: Disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Writable:
    """What trying to write to the database found."""

    checked_at: datetime
    fault: str | None
    """Why it cannot be written; None when it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether runs can be recorded and executed."""

    shortfalls: list[Shortfall]
    """The gravest first; empty means ready."""
    workers: list[LiveWorker]
    """Live workers that have listed their devices."""
    checked_at: datetime
    """When writing to the database was tried last."""


class WriteProbe:
    """Whether the database can be written: tried at most once in FRESH_SECONDS, however many ask and how often."""

    def __init__(self, engine: Engine, clock: Callable[[], datetime] = now) -> None:
        self._engine, self._clock = engine, clock
        self._lock = threading.Lock()
        self._found: Writable | None = None

    def look(self) -> Writable:
        """Return what was found out last, or now if that is too long ago."""
        with self._lock:  # who asks meanwhile waits for the answer instead of trying, too
            at = self._clock()
            if self._found is None or not 0 <= (at - self._found.checked_at).total_seconds() < FRESH_SECONDS:
                self._found = Writable(checked_at=at, fault=self._try(at.isoformat()))
            return self._found

    def _try(self, value: str) -> str | None:
        # Another value each time: a row that stays as it is would not be written.
        try:
            with write_session(self._engine, patience_ms=ASIDE_MS) as session:
                session.merge(Meta(key=PROBE_KEY, value=value))
        except SQLAlchemyError as error:
            return _first_line(error)
        return None


def readiness(engine: Engine, settings: Settings, probe: WriteProbe) -> Readiness:
    """Ask whether the database can be written, look for workers, and measure the disk."""
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
        detail = "no worker with a fresh heartbeat that lists its devices: start `ddp-audit worker`, or wait for it"
        shortfalls.append(Shortfall(code="no_worker", detail=detail))
    shortfalls += _disk_shortfalls(settings)
    return Readiness(shortfalls=shortfalls, workers=workers, checked_at=found.checked_at)


def _first_line(error: SQLAlchemyError) -> str:
    return str(error).splitlines()[0][:200]


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


def standing(engine: Engine, settings: Settings, probe: WriteProbe) -> StatusDocument:
    """Return how the service stands, as far as its database answers."""
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
