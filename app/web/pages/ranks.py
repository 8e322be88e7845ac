"""`/runs/{id}/ranks`: all ranks of a run, a few hundred at a time, and the charts of a run with many of them."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.db import read_session
from app.runs.ordering import LARGEST_ID
from app.runs.states import State
from app.runs.store import get_run, get_run_document
from app.web.charts.metrics import FIRST_CHARTS, MOST_CHARTS, metric_charts
from app.web.forms.log import LogQuery
from app.web.views import rendering
from app.web.views.ranks import PAGE_ROWS, node_of

router = APIRouter(include_in_schema=False)
RunId = Annotated[int, Path(le=LARGEST_ID)]


class RanksQuery(BaseModel):
    """Which ranks are shown."""

    node: str = Field("", max_length=256)
    start: str = Field("0", max_length=9)
    """Number of the first rank; anything else means 0."""


class ChartsQuery(LogQuery):
    """The charts of a run page and the rank that is added to them."""

    metric: str = Field("", max_length=200)
    charts: int = Field(FIRST_CHARTS, ge=1, le=MOST_CHARTS)


@router.get("/runs/{run_id:int}/ranks", name="run_ranks")
def show(request: Request, run_id: RunId, query: Annotated[RanksQuery, Query()]) -> Response:
    """Show ranks of a run by number."""
    with read_session(request.app.state.engine) as session:
        run = get_run_document(session, run_id)
    start = int(query.start) if query.start.isascii() and query.start.isdigit() else 0
    matching = [rank for rank in run.ranks if query.node in ("", node_of(rank))]
    rest = [rank for rank in matching if rank.rank >= start]
    return rendering.page(
        request,
        "pages/runs/ranks.html",
        nav="runs",
        run=run,
        query=query,
        nodes=sorted({node_of(rank) for rank in run.ranks}),
        matching=len(matching),
        rows=rest[:PAGE_ROWS],
        following=rest[PAGE_ROWS].rank if len(rest) > PAGE_ROWS else None,
        final=State(run.state).is_final,
    )


@router.get("/runs/{run_id:int}/charts", name="run_charts")
def charts(request: Request, run_id: RunId, query: Annotated[ChartsQuery, Query()]) -> Response:
    """Return only the charts of metrics, which the page of an active run with many ranks polls."""
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)
        found = metric_charts(session, run_id, find=query.metric, most=query.charts, rank=query.filter().rank)
    return rendering.page(request, "partials/_run_resources.html", resources=found.panels)
