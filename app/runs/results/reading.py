"""Reading a run's `result.json`, in one place: the result, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from app.runs.errors import NotFound
from trainer.contract.paths import RunPaths
from trainer.contract.result import Result
from trainer.contract.wording import fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The outcome of reading a result file."""

    result: Result | None = None
    """None if there is no file, or none in a form that this version reads."""
    document: dict[str, Any] = field(default_factory=dict)
    """The result as the API returns it, including fields that a file may omit; empty without a result."""
    problem: str = ""
    """Why there is no result; empty if there is one."""
    missing: bool = False
    """Whether there is no file."""


def read_result(runs_dir: Path, run_id: int, *, kind: str | None = None) -> Reading:
    """Return the result of a run, or why there is none; a result of a different kind than `kind` is not accepted."""
    return read_file(RunPaths(runs_dir / str(run_id)).result, kind=kind)


def read_file(path: Path, *, kind: str | None = None) -> Reading:
    """Do what `read_result` does, for a result at `path`. Never raises because of a file's content."""
    try:
        result = Result.model_validate(orjson.loads(path.read_bytes()))
        document = result.model_dump(mode="json")
        orjson.dumps([[[[document]]]])  # answers contain it a few levels deeper
    except FileNotFoundError:
        return Reading(problem="there is no such file", missing=True)
    except (OSError, ValueError, orjson.JSONEncodeError) as error:
        return Reading(problem=_why(error))
    if kind is not None and result.kind != kind:
        return Reading(problem=f"it is of kind {result.kind!r}, the run of kind {kind!r}")
    return Reading(result=result, document=document)


def _why(error: Exception) -> str:
    if isinstance(error, orjson.JSONDecodeError):
        return f"it is not valid JSON: {error}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        return f"{place}: {fault(first)}" if place else fault(first)
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return "it is nested too deeply to be written again"


def read_results(runs_dir: Path, run_ids: Sequence[int]) -> list[Reading]:
    """Return one reading per run, in order."""
    return [read_result(runs_dir, run_id) for run_id in run_ids]


def result_document(runs_dir: Path, run_id: int) -> dict[str, Any]:
    """Return the result as the API returns it. Raises NotFound with the reason why there is none."""
    reading = read_result(runs_dir, run_id)
    if reading.problem:
        raise NotFound("no_result", told(run_id, reading))
    return reading.document


def told(run_id: int, reading: Reading) -> str:
    """Return why a run has no result, as a sentence; empty if it has one."""
    if not reading.problem:
        return ""
    if reading.missing:
        return f"run {run_id} has no result: it has not ended, or it ended without one"
    return f"the result of run {run_id} is damaged: {reading.problem}"
