"""`/explain`: the worked example, with editable numbers; also computed by the server, without JavaScript."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.runs.errors import NotFound
from app.runs.requests import RunRequest
from app.web.api.replies import service_of
from app.web.forms.window import Unreadable, cells, read_window
from app.web.views import rendering
from app.web.views.arithmetic import both_means
from app.web.views.rendering import see
from trainer.contract.kinds import exercise_kind
from trainer.contract.normalisation import EmptyWindowError

router = APIRouter(include_in_schema=False)


@router.get("/explain", name="explain_page")
def show(request: Request) -> Response:
    """Show the example; typed values are in the URL."""
    typed = read_window(request.query_params)
    means, problem = None, ""
    try:
        means = both_means(cells(typed))
    except (Unreadable, EmptyWindowError) as error:
        problem = str(error)
    return rendering.page(
        request,
        "pages/explain/show.html",
        nav="explain",
        typed=typed,
        means=means,
        problem=problem,
        guess=request.query_params,
        answered="guess_right" in request.query_params,
    )


@router.post("/explain/run", name="explain_run")
def start(request: Request) -> Response:
    """Start the run that measures the same with a real two-rank job."""
    kind = exercise_kind()
    if kind is None:
        raise NotFound("no_exercise", "no installed kind measures the worked example")
    wanted = RunRequest(kind=kind.name, preset=kind.exercise)
    return see(request, "run_page", run_id=service_of(request).submit(wanted, actor=rendering.actor(request)))
