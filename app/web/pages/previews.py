"""`/runs/{id}/preview`: the beginning of a file of a run."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.db import read_session
from app.runs.results.artifacts import artifact_path
from app.runs.store import get_run
from app.web.views import rendering
from app.web.views.previews import preview_of

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id:int}/preview", name="run_preview")
def preview(request: Request, run_id: int, name: Annotated[str, Query(max_length=1000)]) -> Response:
    """Return the beginning of a text file of the run, escaped."""
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)
    path = artifact_path(request.app.state.settings.runs_dir, run_id, name)
    return rendering.page(request, "partials/_file.html", preview=preview_of(path), name=name)
