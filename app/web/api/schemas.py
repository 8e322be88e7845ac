"""Shapes of the API's answers, as the OpenAPI document states them; answers themselves are built by `app.runs`."""

from types import UnionType
from typing import Any, Final

from pydantic import BaseModel, Field


class FieldMessage(BaseModel):
    """One refused field."""

    field: str
    message: str


class ProblemDocument(BaseModel):
    """RFC 9457 problem."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[FieldMessage] | None = None


class Progress(BaseModel):
    """How far a stage is."""

    stage: str | None = None
    done: float
    total: float | None
    unit: str


class RunSummary(BaseModel):
    """A run in a list."""

    id: int
    name: str
    tags: list[str]
    notes: str
    pinned: bool
    kind: str
    preset: str | None
    state: str = Field(description="queued, starting, running, stopping, succeeded, failed, cancelled or lost")
    reason: str | None
    verdict: str | None = Field(description="pass, fail or inconclusive; only when succeeded")
    params: dict[str, Any]
    created_at: str
    started_at: str | None
    finished_at: str | None
    took_seconds: float | None = Field(description="From start to end; null until both are known.")
    device: str | None
    backend: str | None
    retry_of: int | None
    progress: Progress | None


class RunList(BaseModel):
    """One page of runs, newest first."""

    items: list[RunSummary]
    next_cursor: str | None


class Stage(BaseModel):
    """One attempt of a stage; attempt 0 has not started."""

    name: str
    title: str
    attempt: int
    state: str
    progress: Progress
    exit_code: int | None
    started_at: str | None
    finished_at: str | None


class Rank(BaseModel):
    """One rank as last heard."""

    stage: str
    attempt: int
    rank: int
    local_rank: int
    node: str
    pid: int | None
    host: str
    device: str
    phase: str
    step: int | None
    last_seen: str | None
    stalled: bool
    exit_code: int | None
    signal: int | None
    events: int
    malformed: int


class Failure(BaseModel):
    """What failed first."""

    rank: int | None
    node: str | None
    phase: str | None
    step: int | None
    exit_code: int | None
    signal: int | None
    last_line: str | None
    checkpoint: str | None


class Queue(BaseModel):
    """Place of a waiting run."""

    position: int
    why: str


class RunDocument(RunSummary):
    """A run with everything known about it."""

    launch: dict[str, Any]
    resume_from: str | None
    created_by: str
    gpus: list[int]
    cancel_requested_at: str | None
    stages: list[Stage]
    ranks: list[Rank]
    failure: Failure | None
    diagnosis: str
    history: list[dict[str, Any]]
    reproduce: str
    queue: Queue | None


class EventList(BaseModel):
    """Event lines with their place in the run."""

    items: list[dict[str, Any]]
    next_after: int


class ResourceSeries(BaseModel):
    """What one rank of one stage attempt used; the lists are equally long."""

    stage: str
    attempt: int
    rank: int
    seconds: list[float] = Field(description="Since `since`.")
    cpu_percent: list[float | None] = Field(description="100 is one core kept busy since the sample before.")
    rss_bytes: list[int] = Field(description="Resident memory of the process.")
    gpu_bytes: list[int | None] = Field(description="In use on the rank's GPU by whomever.")
    gpu_percent: list[float | None]


class ResourceList(BaseModel):
    """What the ranks of a run used over time."""

    since: str = Field(description="Start of the run, or its creation before that.")
    series: list[ResourceSeries]


class LogPiece(BaseModel):
    """Part of a rank's output."""

    run_id: int
    stage: str
    attempt: int
    rank: int
    stream: str
    offset: int
    next_offset: int
    size: int
    ended: bool
    text: str


class AuditEntryDocument(BaseModel):
    """Who did what."""

    id: int
    at: str
    actor: str
    action: str
    run_id: int | None
    detail: str


class AuditList(BaseModel):
    """Entries of the audit log, newest first."""

    items: list[AuditEntryDocument]
    next_before: int | None


class ShortfallDocument(BaseModel):
    """One thing that keeps runs from being recorded or started."""

    code: str = Field(description="database_unavailable, no_worker or disk_low")
    detail: str


class WorkerDocument(BaseModel):
    """One worker process."""

    pid: int
    host: str
    started_at: str
    heartbeat_at: str
    heartbeat_seconds: float = Field(description="Age of the newest heartbeat.")
    fresh: bool
    devices: dict[str, Any] | None = Field(description="What it sees of its machine; null until it has looked.")
    kinds: list[str]
    targets: list[str]


class WaitingRun(BaseModel):
    """A run in the queue."""

    id: int
    name: str
    kind: str
    preset: str | None
    created_at: str
    position: int = Field(description="1 is next.")
    why: str


class StatusDocument(BaseModel):
    """How the service stands."""

    ready: bool
    shortfalls: list[ShortfallDocument]
    workers: list[WorkerDocument]
    queue: list[WaitingRun] = Field(description="The first 50.")
    waiting: int
    running: int
    schema_: dict[str, str | None] | None = Field(alias="schema", description="Versions of database and program.")
    disk: dict[str, Any]


class DeliveryList(BaseModel):
    """Webhook deliveries, newest first."""

    items: list[dict[str, Any]]
    next_before: int | None


class Items(BaseModel):
    """A plain list."""

    items: list[dict[str, Any]]


Answers = dict[int | str, dict[str, Any]]
ALWAYS: Final = (400, 401, 422, 503)
WORDS: Final = {
    400: "The Host header names another service.",
    401: "A token is needed, or the one given is wrong.",
    403: "The viewer's token cannot write, or a page of another site asked.",
    404: "There is no such thing.",
    406: "The format cannot be given here.",
    409: "The state of things does not allow it.",
    413: "The body is over the limit.",
    415: "A picture of this type is never accepted.",
    422: "Refused: the fields at fault are named.",
    429: "Too many at once; Retry-After says when to come back.",
    503: "Unavailable for a moment, such as while another program holds the database; nothing was changed.",
}
PROBLEM: Final[dict[str, Any]] = {"model": ProblemDocument, "content": {"application/problem+json": {}}}


def answers(*problems: int, success: int = 200, model: type[BaseModel] | UnionType | None = None) -> Answers:
    """Return the `responses` of a route: its success, and the problems it can answer with besides every route's own."""
    found: Answers = {status: {"description": WORDS[status], **PROBLEM} for status in sorted({*problems, *ALWAYS})}
    if model is not None:
        found[success] = {"model": model, "description": "Success"}
    return found
