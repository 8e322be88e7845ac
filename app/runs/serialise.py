"""Rows as the documents that API, pages and command line show."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from app.clock import rfc3339
from app.runs.models import RankRow, Run, RunHistory, StageAttempt
from trainer.contract.kinds import DEFAULT_PRESET, kinds

FAILURE_FIELDS: Final = ("rank", "node", "phase", "step", "exit_code", "signal", "last_line", "checkpoint")


def summary(run: Run, tags: Sequence[str], progress: dict[str, Any] | None) -> dict[str, Any]:
    """Return the document of a run in a list; `progress` is that of its current or last stage."""
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
    }


def document(
    run: Run,
    *,
    tags: Sequence[str],
    stages: Sequence[StageAttempt],
    ranks: Iterable[RankRow],
    history: Iterable[RunHistory],
    queue: dict[str, Any] | None,
) -> dict[str, Any]:
    """Return the full document of one run; `stages` are in order, `ranks` those of the current or last stage."""
    current = current_stage(stages)
    return {
        **summary(run, tags, stage_progress(current)),
        "launch": run.launch,
        "resume_from": run.resume_from,
        "created_by": run.created_by,
        "gpus": run.gpus,
        "cancel_requested_at": rfc3339(run.cancel_requested_at),
        "stages": [stage(row) for row in stages],
        "ranks": [rank(row) for row in ranks],
        "failure": failure(run.failure),
        "diagnosis": run.diagnosis,
        "history": [move(row) for row in history],
        "reproduce": reproduce(run),
        "queue": queue,
    }


def current_stage(stages: Sequence[StageAttempt]) -> StageAttempt | None:
    """Return the newest attempt that was started, None before the first."""
    started = [row for row in stages if row.attempt > 0]
    return max(started, key=lambda row: (row.position, row.attempt), default=None)


def stage_progress(row: StageAttempt | None) -> dict[str, Any] | None:
    """Return how far a stage is, with its name."""
    if row is None:
        return None
    return {"stage": row.stage, "done": row.done, "total": row.total, "unit": row.unit}


def stage(row: StageAttempt) -> dict[str, Any]:
    """Return the document of one stage attempt; attempt 0 is a planned stage."""
    return {
        "name": row.stage,
        "title": row.title,
        "attempt": row.attempt,
        "state": row.state,
        "progress": {"done": row.done, "total": row.total, "unit": row.unit},
        "exit_code": row.exit_code,
        "started_at": rfc3339(row.started_at),
        "finished_at": rfc3339(row.finished_at),
    }


def rank(row: RankRow) -> dict[str, Any]:
    """Return the document of one rank."""
    return {
        "stage": row.stage,
        "attempt": row.attempt,
        "rank": row.rank,
        "local_rank": row.local_rank,
        "node": row.node,
        "pid": row.pid,
        "host": row.host,
        "device": row.device,
        "phase": row.phase,
        "step": row.step,
        "last_seen": rfc3339(row.last_seen),
        "stalled": row.stalled,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "events": row.events,
        "malformed": row.malformed,
    }


def failure(stored: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return what failed first, every field present."""
    return None if stored is None else {**dict.fromkeys(FAILURE_FIELDS), **stored}


def move(row: RunHistory) -> dict[str, Any]:
    """Return the document of one move of the state."""
    return {
        "seq": row.seq,
        "at": rfc3339(row.at),
        "from": row.origin,
        "to": row.target,
        "reason": row.reason,
        "note": row.note,
        "actor": row.actor,
    }


def reproduce(run: Run) -> str:
    """Return the shell command that repeats the run: kind, preset, and what differs from the preset."""
    words = ["ddp-audit", "run", run.kind]
    if run.preset:
        words += ["--preset", run.preset]
    spec = kinds().get(run.kind)
    usual = {}
    if spec is not None:
        filled = spec.params.model_validate({**spec.presets.get(run.preset or DEFAULT_PRESET, {})})
        usual = filled.model_dump(mode="json")
    for name, value in run.params.items():
        if name not in usual or usual[name] != value:
            words += ["-p", f"{name}={parameter_text(value)}"]
    return shlex.join(words)


def parameter_text(value: Any) -> str:
    """Return a parameter's value as `-p name=value` takes it: words as they are, everything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
