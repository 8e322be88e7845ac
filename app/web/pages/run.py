"""`/runs/{id}`: the page of one run, and what its buttons do."""

from dataclasses import asdict
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import BaseModel, Field

from app.db import read_session
from app.runs.removal import delete_run
from app.runs.service import Service
from app.runs.store import get_run, get_run_document
from app.web.charts.metrics import FIRST_CHARTS, MOST_CHARTS, metric_charts
from app.web.pages.deliveries import notice_of
from app.web.pages.resources import resource_panels
from app.web.runlog.lines import LogFilter
from app.web.runlog.tail import render_tail
from app.web.views import rendering
from app.web.views.run import files_context, run_context

router = APIRouter(include_in_schema=False)


class LogQuery(BaseModel):
    """Which part of the log a reader sees, and from where on the stream starts."""

    after: str = Field("", max_length=20_000)
    stage: str = Field("", max_length=64)
    rank: str = Field("", max_length=9)
    stream: str = Field("", max_length=9)

    def filter(self) -> LogFilter:
        """Return it as a filter; a rank that is no number means all, an unknown stream everything."""
        rank = int(self.rank) if self.rank.isascii() and self.rank.isdigit() and len(self.rank) < 7 else None
        stream = self.stream if self.stream in ("messages", "stdout", "stderr") else ""
        return LogFilter(stage=self.stage, rank=rank, stream=stream)


class PageQuery(LogQuery):
    """Which part of the log and which charts a page shows, and what it offers to edit."""

    metric: str = Field("", max_length=200)
    charts: int = Field(FIRST_CHARTS, ge=1, le=MOST_CHARTS)
    edit: str = Field("", max_length=16)
    """Label whose field stands open: how it is edited where there is no JavaScript."""


@router.get("/runs/{run_id:int}", name="run_page")
def show(request: Request, run_id: int, query: Annotated[PageQuery, Query()]) -> Response:
    """Show a run as it stands, at one point of its log; the live stream goes on from exactly there."""
    return render(request, run_id, query)


def render(
    request: Request, run_id: int, query: PageQuery, *, status: int = 200, typed: str | None = None, problem: str = ""
) -> Response:
    """Return the page of a run; a label that stands open shows what was `typed` and the `problem` with it."""
    settings = request.app.state.settings
    wanted = query.filter()
    with read_session(request.app.state.engine) as session:
        run = get_run_document(session, run_id)
        log = render_tail(session, settings.runs_dir, run_id, wanted)
        charts = metric_charts(session, run_id, find=query.metric, most=query.charts)
        used = resource_panels(session, get_run(session, run_id))
        notice = notice_of(request, session, run_id)
    place = LogQuery(after=log.cursor.encode(), stage=query.stage, rank=query.rank, stream=query.stream)
    known = {item.rank for item in run.ranks} | set(range(run.params.get("world_size", 0)))
    return rendering.page(
        request,
        "pages/runs/show.html",
        status,
        **run_context(settings.runs_dir, run),
        **files_context(settings.runs_dir, run),
        nav="runs",
        editing=(query.edit, typed, problem),
        lines=log.lines,
        log=log,
        log_filter=asdict(wanted),
        log_stages=list(dict.fromkeys(item.name for item in run.stages)),
        log_ranks=sorted(known),
        metrics=charts,
        resources=used,
        notice=notice,
        live_url=f"{rendering.path(request, 'run_live', run_id=run_id)}?{urlencode(place.model_dump())}",
    )


def service(request: Request) -> Service:
    """Return the user's verbs."""
    return Service(engine=request.app.state.engine, settings=request.app.state.settings)


def see(request: Request, route: str, **params: Any) -> RedirectResponse:
    """Answer a form: go and look at a page."""
    return RedirectResponse(rendering.path(request, route, **params), status_code=303)


@router.post("/runs/{run_id:int}/cancel", name="run_cancel")
def cancel(request: Request, run_id: int) -> Response:
    """Ask for the end of a run."""
    service(request).cancel(run_id, actor=rendering.actor(request))
    return see(request, "run_page", run_id=run_id)


@router.post("/runs/{run_id:int}/retry", name="run_retry")
def retry(request: Request, run_id: int, resume: Annotated[str, Form()] = "") -> Response:
    """Start a new run with the parameters of this one, from its newest checkpoint when asked."""
    new_id = service(request).retry(run_id, resume=bool(resume), actor=rendering.actor(request))
    return see(request, "run_page", run_id=new_id)


@router.post("/runs/{run_id:int}/delete", name="run_delete")
def delete(request: Request, run_id: int) -> Response:
    """Remove a run that has ended."""
    delete_run(request.app.state.engine, request.app.state.settings, run_id, actor=rendering.actor(request))
    return see(request, "runs_page")
