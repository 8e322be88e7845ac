"""`/runs/{id}`: the page of one run, and the actions of its buttons."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from app.runs.removal import delete_run
from app.web.api.replies import service_of
from app.web.views import rendering
from app.web.views.rendering import see
from app.web.views.runpage import PageQuery, render

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id:int}", name="run_page")
def show(request: Request, run_id: int, query: Annotated[PageQuery, Query()]) -> Response:
    """Show a run at one point of its log; the live stream continues from exactly there."""
    return render(request, run_id, query)


@router.post("/runs/{run_id:int}/cancel", name="run_cancel")
def cancel(request: Request, run_id: int) -> Response:
    """Cancel a run."""
    service_of(request).cancel(run_id, actor=rendering.actor(request))
    return see(request, "run_page", run_id=run_id)


@router.post("/runs/{run_id:int}/retry", name="run_retry")
def retry(request: Request, run_id: int, resume: Annotated[str, Form()] = "") -> Response:
    """Start a new run with the parameters of this one, optionally from its newest checkpoint."""
    new_id = service_of(request).retry(run_id, resume=bool(resume), actor=rendering.actor(request))
    return see(request, "run_page", run_id=new_id)


@router.post("/runs/{run_id:int}/delete", name="run_delete")
def delete(request: Request, run_id: int) -> Response:
    """Delete an ended run."""
    delete_run(request.app.state.engine, request.app.state.settings, run_id, actor=rendering.actor(request))
    return see(request, "runs_page")
