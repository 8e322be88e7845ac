"""The page of one run, put together from its document, result, log and charts."""

from dataclasses import asdict, replace
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field

from app.db import Session, read_session
from app.runs.store import get_run, get_run_document
from app.sharing.deliveries import delivery_log
from app.web.charts.crowd import MOST_LINES
from app.web.charts.metrics import CROWD_CHARTS, FIRST_CHARTS, MOST_CHARTS, metric_charts
from app.web.charts.resources import resource_panels
from app.web.forms.log import LogQuery
from app.web.runlog.lines import MOST_PRINTING
from app.web.runlog.tail import render_tail
from app.web.views import rendering
from app.web.views.run import files_context, run_context


class PageQuery(LogQuery):
    """The page's log filter, charts, and label being edited."""

    metric: str = Field("", max_length=200)
    charts: int | None = Field(None, ge=1, le=MOST_CHARTS)
    """Most charts of metrics; fewer by default for many ranks, whose charts cost more."""
    resources: str = Field("", max_length=9)
    """Anything: the charts of resources are in the page even for many ranks, as needed without JavaScript."""
    edit: str = Field("", max_length=16)
    """Label whose field is open: editing without JavaScript."""


def render(
    request: Request, run_id: int, query: PageQuery, *, status: int = 200, typed: str | None = None, problem: str = ""
) -> Response:
    """Return the page of a run; a label being edited shows what was `typed` and the `problem` with it."""
    settings = request.app.state.settings
    wanted = query.filter()
    with read_session(request.app.state.engine) as session:
        run = get_run_document(session, run_id)
        known = {item.rank for item in run.ranks} | set(range(run.params.get("world_size", 0)))
        crowd = len(known) > MOST_LINES
        most = query.charts or (CROWD_CHARTS if crowd else FIRST_CHARTS)
        log = render_tail(session, settings.runs_dir, run_id, wanted)
        charts = metric_charts(session, run_id, find=query.metric, most=most, rank=wanted.rank)
        later = crowd and not query.resources
        used = [] if later else resource_panels(session, get_run(session, run_id), rank=wanted.rank)
        notice = _notice(request, session, run_id)
    after = replace(log.cursor, of=query.owner(run_id)).encode()
    place = LogQuery(after=after, stage=query.stage, rank=query.rank, stream=query.stream)
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
        resources_later=later,
        notice=notice,
        crowd=crowd,
        printed=MOST_PRINTING if wanted.rank is None and len(known) > MOST_PRINTING else None,
        charts_url=_with(request, "run_charts", run_id, rank=query.rank, metric=query.metric, charts=most),
        resources_url=_with(request, "run_resources", run_id, rank=query.rank),
        live_url=f"{rendering.path(request, 'run_live', run_id=run_id)}?{urlencode(place.model_dump())}",
    )


def _with(request: Request, name: str, run_id: int, **query: object) -> str:
    """Return the address of a part of a run's page; empty values are left out."""
    given = urlencode({key: value for key, value in query.items() if value})
    return rendering.path(request, name, run_id=run_id) + (f"?{given}" if given else "")


def _notice(request: Request, session: Session, run_id: int) -> dict[str, str] | None:
    """Return `{status, attempts, url}` of the newest webhook delivery of a run; None without webhook or end."""
    if request.app.state.settings.webhook_url is None:
        return None
    items = delivery_log(session, run_id=run_id, limit=1).items
    if not items:
        return None
    url = f"{rendering.path(request, 'deliveries_page')}?run={run_id}"
    return {"status": items[0].status, "attempts": str(len(items[0].attempts)), "url": url}
