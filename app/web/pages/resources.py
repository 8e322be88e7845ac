"""`/runs/{id}/resources`: the charts of a run's resource use."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from app.db import read_session
from app.runs.ordering import LARGEST_ID
from app.runs.states import State
from app.runs.store import get_run
from app.web.charts.resources import resource_panels
from app.web.forms.log import LogQuery
from app.web.views import rendering

router = APIRouter(include_in_schema=False)

NOTHING_FOLLOWS: Final = 286
"""The status that makes htmx stop polling."""


@router.get("/runs/{run_id:int}/resources", name="run_resources")
def show(
    request: Request, run_id: Annotated[int, Path(le=LARGEST_ID)], query: Annotated[LogQuery, Query()]
) -> Response:
    """Return only the charts, which the page of an active run polls."""
    with read_session(request.app.state.engine) as session:
        run = get_run(session, run_id)
        panels = resource_panels(session, run, rank=query.filter().rank)
    status = NOTHING_FOLLOWS if State(run.state).is_final else 200
    return rendering.page(request, "partials/_run_resources.html", status, resources=panels)
