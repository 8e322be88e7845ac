"""Outputs of a run: its result, its artifacts, its checkpoints."""

from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from app.runs.results.artifacts import ACTIVE_TYPES, UNKNOWN_TYPE, ArtifactList, artifact_path, artifacts, media_type
from app.runs.results.checkpoints import CheckpointList, check_checkpoints
from app.runs.results.reading import result_document
from app.runs.results.verification import run_folder, verify_run
from app.runs.store import get_run
from app.web.api.answers import answers
from app.web.api.replies import AppSettings, OneOfFew, ReadSession, cached_reply
from app.web.http.head import headers_alone, json_headers, without_body
from trainer.contract.result import Result

router = APIRouter(prefix="/runs/{run_id}", tags=["files"])

SANDBOX: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""For documents that a run wrote: they may have styles, but cannot run anything."""


@router.get("/result", response_model=Result, responses=answers(404))
def show_result(request: Request, run_id: int, session: ReadSession, settings: AppSettings) -> Response:
    """Return the run's result: verdict, checks, summary, panels."""
    get_run(session, run_id)
    return cached_reply(request, result_document(settings.runs_dir, run_id))


@router.get("/artifacts", responses=answers(404))
def list_artifacts(run_id: int, session: ReadSession, settings: AppSettings) -> ArtifactList:
    """List the run's artifacts."""
    get_run(session, run_id)
    return artifacts(settings.runs_dir, run_id)


@router.get("/artifacts/{path:path}", responses=answers(404), response_class=FileResponse)
def read_artifact(request: Request, run_id: int, path: str, session: ReadSession, settings: AppSettings) -> Response:
    """Return one file."""
    get_run(session, run_id)
    found = artifact_path(settings.runs_dir, run_id, path)
    kind = media_type(found)
    headers = {}
    if found.suffix.lower() in ACTIVE_TYPES:
        headers["Content-Security-Policy"] = SANDBOX
    if kind == UNKNOWN_TYPE:
        headers["Content-Disposition"] = f"attachment; filename*=utf-8''{quote(found.name, safe='')}"
    answer = FileResponse(found, media_type=kind, headers=headers, stat_result=found.stat())
    return without_body(answer) if headers_alone(request) else answer


@router.get("/verification", response_model=dict[str, Any], dependencies=[OneOfFew], responses=answers(404, 429))
def show_verification(request: Request, run_id: int, session: ReadSession, settings: AppSettings) -> Any:
    """Repeat the audit of the run from its stored files alone: `{ok, rows, problems, pass_line, ...}`."""
    get_run(session, run_id)
    folder = run_folder(settings.runs_dir, run_id)
    return json_headers() if headers_alone(request) else verify_run(folder)


@router.get("/checkpoints", response_model=CheckpointList, dependencies=[OneOfFew], responses=answers(404, 429))
def list_checkpoints(request: Request, run_id: int, session: ReadSession, settings: AppSettings) -> Any:
    """List the run's checkpoints, newest first, after reading every byte, and other entries next to them."""
    get_run(session, run_id)
    folder = run_folder(settings.runs_dir, run_id)
    return json_headers() if headers_alone(request) else check_checkpoints(folder)
