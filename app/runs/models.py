"""Rows of the database: run > stage attempt > rank, their events, and the workers."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Column, ForeignKeyConstraint, Index, LargeBinary, Text
from sqlmodel import Field, SQLModel

from app.db import UtcDateTime


def _json(nullable: bool = False) -> Any:
    return Column(JSON(none_as_null=True), nullable=nullable)


def _run_key() -> Any:
    return Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)


class Run(SQLModel, table=True):
    """One request and its outcome."""

    __table_args__ = (
        Index("ix_run_state_id", "state", "id"),
        Index("ix_run_kind_id", "kind", "id"),
        Index("ix_run_verdict_id", "verdict", "id"),
        Index("ix_run_finished_at", "finished_at", "id"),
        Index("ix_run_took_seconds", "took_seconds", "id"),
        Index("ix_run_pinned_id", "pinned", "id"),
        Index("ux_run_idempotency", "idempotency_key", unique=True),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    name: str = ""
    notes: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    pinned: bool = False
    kind: str
    preset: str | None = None
    params: dict[str, Any] = Field(sa_column=_json())
    """Complete: preset and defaults filled in."""
    launch: dict[str, Any] = Field(default_factory=dict, sa_column=_json())
    """For the executor; never part of a kind's parameters."""
    state: str = "queued"
    reason: str | None = None
    verdict: str | None = None
    created_at: datetime = Field(sa_type=UtcDateTime)
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    took_seconds: float | None = None
    """From start to end; None until both are known, and permanently if the run ended before its start."""
    cancel_requested_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    stop_reason: str | None = None
    """Why the worker is stopping the run: a Reason that becomes final once every process has ended."""
    worker_id: str | None = None
    """Lease: the worker responsible for the run."""
    lease_until: datetime | None = Field(default=None, sa_type=UtcDateTime)
    device: str | None = None
    """`cuda` or `cpu`, decided at the claim."""
    backend: str | None = None
    gpus: list[int] = Field(default_factory=list, sa_column=_json())
    """GPUs held by the run."""
    waiting_for: str = ""
    """Why a queued run has not started yet, as text."""
    next_event_id: int = 1
    """Event ids are assigned per run, under the run's lease."""
    failure: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    diagnosis: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    retry_of: int | None = None
    """The run that this run repeats; a number that is kept if that run is deleted."""
    resume_from: str | None = None
    """Checkpoint folder inside this run's folder from which the run continues."""
    idempotency_key: str | None = None
    request_digest: str | None = None
    """SHA-256 of the request body that created the run."""
    created_by: str = ""
    deleting: bool = False
    """Set first when a run is deleted, so that an interrupted deletion can be completed later."""


class RunTag(SQLModel, table=True):
    """A tag of a run."""

    __tablename__ = "run_tag"
    __table_args__ = (Index("ix_run_tag_tag", "tag", "run_id"),)

    run_id: int = _run_key()
    tag: str = Field(primary_key=True)


class RunHistory(SQLModel, table=True):
    """One state change of a run, written in the transaction that made it."""

    __tablename__ = "run_history"

    run_id: int = _run_key()
    seq: int = Field(primary_key=True)
    """1, 2, 3 … within the run."""
    at: datetime = Field(sa_type=UtcDateTime)
    origin: str | None = None
    """Previous state; None for the first row."""
    target: str
    reason: str | None = None
    note: str = ""
    actor: str = ""
    """`user`, or the worker's id."""


class StageAttempt(SQLModel, table=True):
    """One attempt of one stage: a process group."""

    __tablename__ = "stage_attempt"

    run_id: int = _run_key()
    stage: str = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    """1, 2 … ; 0 for a planned stage that has not started."""
    position: int
    """Order of the stage in the run."""
    title: str = ""
    state: str = "queued"
    """queued, running, succeeded, failed, killed (on purpose), requeued (by a scheduler), cancelled, skipped."""
    done: float = 0
    total: float | None = None
    unit: str = ""
    exit_code: int | None = None
    started_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    finished_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    reference: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    """Data by which the executor finds the attempt again; opaque to everything else."""


class RankRow(SQLModel, table=True):
    """One rank of one attempt, as last reported."""

    __tablename__ = "rank"
    __table_args__ = (
        ForeignKeyConstraint(
            ["run_id", "stage", "attempt"],
            ["stage_attempt.run_id", "stage_attempt.stage", "stage_attempt.attempt"],
            ondelete="CASCADE",
        ),
    )

    run_id: int = Field(primary_key=True)
    stage: str = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    local_rank: int = 0
    node: str = ""
    pid: int | None = None
    host: str = ""
    device: str = ""
    phase: str = ""
    step: int | None = None
    last_seen: datetime | None = Field(default=None, sa_type=UtcDateTime)
    stalled: bool = False
    exit_code: int | None = None
    signal: int | None = None
    offset: int = 0
    """Ingested bytes of the event file; updated in the transaction that stores the events."""
    events: int = 0
    """Number of events ingested from the file."""
    malformed: int = 0
    """Number of malformed lines in the file."""


class RunEvent(SQLModel, table=True):
    """One event line of a rank, as written."""

    __tablename__ = "run_event"
    __table_args__ = (
        Index("ix_run_event_rank", "run_id", "rank", "id"),
        Index("ix_run_event_type", "run_id", "type", "id"),
        {"sqlite_with_rowid": False},
    )

    run_id: int = _run_key()
    id: int = Field(primary_key=True)
    """1, 2, 3 … within the run."""
    stage: str
    attempt: int
    rank: int
    type: str
    line: str = Field(sa_column=Column(Text, nullable=False))
    """The JSON line, unchanged."""


class MetricChunk(SQLModel, table=True):
    """Consecutive points of one series: float64 steps and values, packed."""

    __tablename__ = "metric_chunk"
    __table_args__ = (
        Index("ix_metric_chunk_series", "run_id", "key", "rank", "first_event_id"),
        {"sqlite_with_rowid": False},
    )

    run_id: int = _run_key()
    first_event_id: int = Field(primary_key=True)
    key: str = Field(primary_key=True)
    rank: int
    stage: str
    attempt: int
    count: int
    steps: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """`count` float64, little endian."""
    points: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    """`count` float64, little endian; null is a NaN with its own payload, see `app.runs.telemetry.packing`."""


class RankUsage(SQLModel, table=True):
    """Resource use of one rank at one moment, as measured by the worker from outside."""

    __tablename__ = "rank_usage"
    __table_args__ = ({"sqlite_with_rowid": False},)

    run_id: int = _run_key()
    stage: str = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    at: float = Field(primary_key=True)
    """Unix seconds; the same for all ranks of one sample."""
    cpu_seconds: float
    """Since the start of the process, so thinning out samples loses no work."""
    rss_bytes: int = Field(sa_type=BigInteger)
    gpu_bytes: int | None = Field(default=None, sa_type=BigInteger)
    """In use on the rank's GPU by any process; None on a CPU."""
    gpu_percent: float | None = None


class MalformedLine(SQLModel, table=True):
    """A line that is not an event, or the torn tail of an ended attempt: stored and shown, never dropped."""

    __tablename__ = "malformed_line"

    run_id: int = _run_key()
    stage: str = Field(primary_key=True)
    attempt: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    offset: int = Field(primary_key=True)
    """Byte position of the line in its file."""
    text: str = Field(sa_column=Column(Text, nullable=False))
    """At most 4,096 characters, undecodable bytes replaced."""
    why: str


class WorkerRow(SQLModel, table=True):
    """One worker process and what it can run."""

    __tablename__ = "worker"

    id: str = Field(primary_key=True)
    """Random, new at every start of a worker."""
    pid: int
    pid_start: float
    boot_id: str
    host: str
    started_at: datetime = Field(sa_type=UtcDateTime)
    heartbeat_at: datetime = Field(sa_type=UtcDateTime)
    devices: dict[str, Any] | None = Field(default=None, sa_column=_json(nullable=True))
    """Document of `trainer.probe`; None until the first probe has finished."""
    kinds: list[str] = Field(default_factory=list, sa_column=_json())
    targets: list[str] = Field(default_factory=list, sa_column=_json())


class AuditEntry(SQLModel, table=True):
    """Who launched, cancelled, deleted or changed what."""

    __tablename__ = "audit_entry"
    __table_args__ = (Index("ix_audit_entry_run", "run_id", "id"),)

    id: int | None = Field(default=None, primary_key=True)
    at: datetime = Field(sa_type=UtcDateTime)
    actor: str
    action: str
    run_id: int | None = None
    detail: str = ""


class Meta(SQLModel, table=True):
    """Facts about the database itself, such as its random id."""

    key: str = Field(primary_key=True)
    value: str
