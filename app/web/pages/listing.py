"""`/` and `/runs`: the list of runs, with its filters, order and columns in the URL."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response

from app.runs.requests import RunRequest
from app.web.api.replies import service_of
from app.web.forms.listing import ListQuery
from app.web.views import rendering
from app.web.views.listing import list_context
from app.web.views.rendering import see
from trainer.contract.kinds import DEFAULT_PRESET, default_kind

router = APIRouter(include_in_schema=False)


@router.get("/", name="index")
def index(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show the list; without any run, introduce the product."""
    return rendering.page(request, "pages/runs/list.html", **list_context(request, query))


@router.get("/runs", name="runs_page")
def runs(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Show one page of runs, filtered by the URL."""
    return rendering.page(request, "pages/runs/list.html", **list_context(request, query))


@router.get("/runs/rows", name="run_rows")
def rows(request: Request, query: Annotated[ListQuery, Query()]) -> Response:
    """Return only the rows, which the list polls while it is open."""
    return rendering.page(request, "partials/_run_rows.html", **list_context(request, query))


@router.post("/quick", name="quick_audit")
def quick(request: Request, kind: Annotated[str, Form(max_length=64)] = "") -> Response:
    """Start the quick audit with one click."""
    wanted = RunRequest(kind=kind or default_kind().name, preset=DEFAULT_PRESET)
    run_id = service_of(request).submit(wanted, actor=rendering.actor(request))
    return see(request, "run_page", run_id=run_id)
