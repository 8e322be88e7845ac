"""Documents of runs, built from rows: in a list, in full, and their stages, ranks and state changes."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Self

from pydantic import Field

from app.clock import rfc3339
from app.documents import Document
from app.formats import exact
from app.runs.models import RankRow, Run, RunHistory, StageAttempt
from trainer.contract.kinds import DEFAULT_PRESET, kinds


class Progress(Document):
    """Progress of a stage."""

    done: float
    total: float | None
    unit: str


class CurrentProgress(Document):
    """Progress of the current or last stage of a run."""

    stage: str
    done: float
    total: float | None
    unit: str

    @classmethod
    def of(cls, stages: Sequence[StageAttempt]) -> Self | None:
        """Return the progress of the newest started attempt, None before the first."""
        row = current_stage(stages)
        return None if row is None else cls(stage=row.stage, done=row.done, total=row.total, unit=row.unit)


class RunSummary(Document):
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
    progress: CurrentProgress | None
    waiting_for: str = Field(description="Why it does not run at the moment; empty if it does or has ended.")

    @classmethod
    def of(cls, run: Run, tags: Sequence[str], progress: CurrentProgress | None) -> Self:
        """Return the document of a run in a list."""
        return cls(**_summary(run, tags, progress))


def _summary(run: Run, tags: Sequence[str], progress: CurrentProgress | None) -> dict[str, Any]:
    return {
        "id": run.id,
        "name": run.name,
        "tags": list(tags),
        "notes": run.notes,
        "pinned": run.pinned,
        "kind": run.kind,
        "preset": run.preset,
        "state": run.state,
        "reason": run.reason,
        "verdict": run.verdict,
        "params": run.params,
        "created_at": rfc3339(run.created_at),
        "started_at": rfc3339(run.started_at),
        "finished_at": rfc3339(run.finished_at),
        "took_seconds": run.took_seconds,
        "device": run.device,
        "backend": run.backend,
        "retry_of": run.retry_of,
        "progress": progress,
        "waiting_for": run.waiting_for,
    }


class RunList(Document):
    """One page of a list of runs."""

    items: list[RunSummary]
    next_cursor: str | None = Field(description="For the next page; null on the last page.")


class Stage(Document):
    """One attempt of a stage; attempt 0 has not started."""

    name: str
    title: str
    attempt: int
    state: str
    progress: Progress
    exit_code: int | None
    started_at: str | None
    finished_at: str | None

    @classmethod
    def of(cls, row: StageAttempt) -> Self:
        """Return the document of one stage attempt."""
        return cls(
            name=row.stage,
            title=row.title,
            attempt=row.attempt,
            state=row.state,
            progress=Progress(done=row.done, total=row.total, unit=row.unit),
            exit_code=row.exit_code,
            started_at=rfc3339(row.started_at),
            finished_at=rfc3339(row.finished_at),
        )


class Rank(Document):
    """The last known state of one rank."""

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

    @classmethod
    def of(cls, row: RankRow) -> Self:
        """Return the document of one rank."""
        own = {name: getattr(row, name) for name in cls.model_fields}
        return cls(**{**own, "last_seen": rfc3339(row.last_seen)})


class Failure(Document):
    """The first failure of a run."""

    rank: int | None = None
    node: str | None = None
    phase: str | None = None
    step: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_line: str | None = None
    checkpoint: str | None = None


class Queue(Document):
    """Position of a waiting run."""

    position: int = Field(description="1 is next.")
    why: str


class Move(Document):
    """One state change of a run."""

    seq: int
    at: str
    origin: str | None = Field(alias="from")
    target: str = Field(alias="to")
    reason: str | None
    note: str
    actor: str

    @classmethod
    def of(cls, row: RunHistory) -> Self:
        """Return the document of one state change."""
        own = {name: getattr(row, name) for name in cls.model_fields}
        return cls(**{**own, "at": rfc3339(row.at)})


class RunDocument(RunSummary):
    """A run with all its details."""

    launch: dict[str, Any]
    resume_from: str | None
    created_by: str
    gpus: list[int]
    cancel_requested_at: str | None
    stages: list[Stage]
    ranks: list[Rank] = Field(description="Of the current or last stage.")
    failure: Failure | None
    diagnosis: str
    history: list[Move]
    reproduce: str = Field(description="Shell command that repeats the run.")
    repeatable: bool = Field(description="Whether a retry can start it; a command traced in a terminal cannot be.")
    queue: Queue | None

    @classmethod
    def whole(
        cls,
        run: Run,
        *,
        tags: Sequence[str],
        stages: Sequence[StageAttempt],
        ranks: Iterable[RankRow],
        history: Iterable[RunHistory],
        queue: Queue | None,
    ) -> Self:
        """Return the full document of one run; `stages` are in order, `ranks` those of the current or last stage."""
        return cls(
            **_summary(run, tags, CurrentProgress.of(stages)),
            launch=run.launch,
            resume_from=run.resume_from,
            created_by=run.created_by,
            gpus=run.gpus,
            cancel_requested_at=rfc3339(run.cancel_requested_at),
            stages=[Stage.of(row) for row in stages],
            ranks=[Rank.of(row) for row in ranks],
            failure=None if run.failure is None else Failure(**run.failure),
            diagnosis=run.diagnosis,
            history=[Move.of(row) for row in history],
            reproduce=reproduce(run),
            repeatable=not (traced(run) and (run.params.get("command") or run.params.get("imported"))),
            queue=queue,
        )


def current_stage(stages: Sequence[StageAttempt]) -> StageAttempt | None:
    """Return the newest started attempt, None before the first."""
    started = [row for row in stages if row.attempt > 0]
    return max(started, key=lambda row: (row.position, row.attempt), default=None)


def traced(run: Run) -> bool:
    """Whether the run looks into a program of the user's."""
    spec = kinds().get(run.kind)
    return spec is not None and spec.traces


def reproduce(run: Run) -> str:
    """Return the shell command that repeats the run: kind, preset, and parameters that differ from the preset."""
    spec = kinds().get(run.kind)
    usual = {}
    if spec is not None:
        filled = spec.params.model_validate({**spec.presets.get(run.preset or DEFAULT_PRESET, {})})
        usual = filled.model_dump(mode="json")
    given = {name: value for name, value in run.params.items() if name not in usual or usual[name] != value}
    if spec is not None and spec.traces and given.get("command"):
        return _traced(given)
    words = ["ddp-audit", "run", run.kind]
    if run.preset:
        words += ["--preset", run.preset]
    for name, value in given.items():
        words += ["-p", f"{name}={exact(value)}"]
    for name, value in run.launch.items():
        words += ["--launch", f"{name}={exact(value)}"]
    return shlex.join(words)


def _traced(given: dict[str, Any]) -> str:
    """Return the command of a program that was traced in a terminal."""
    words = ["ddp-audit", "trace"]
    for name, value in given.items():
        if name != "command":
            words += [word for item in _items(value) for word in (f"--{name.replace('_', '-')}", item)]
    return shlex.join([*words, "--", *given["command"]])


def _items(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{name}={exact(item)}" for name, item in value.items()]
    return [exact(item) for item in (value if isinstance(value, list) else [value])]
