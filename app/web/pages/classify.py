"""`/classify`: classify a picture, with bars for all classes; the same answer as the API's."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.db import read_session
from app.runs.store import RunFilters, list_runs
from app.web.api.predict import classify_upload
from app.web.http.problems import Problem
from app.web.http.uploads import read_upload
from app.web.views import rendering
from trainer.contract.kinds import classifiers

router = APIRouter(include_in_schema=False)
MOST_RUNS: Final = 30


def _context(request: Request, run: int | None) -> dict[str, Any]:
    known = classifiers()
    with read_session(request.app.state.engine) as session:
        runs = list_runs(session, RunFilters(kind=tuple(known), state=("succeeded",)), limit=MOST_RUNS).items
    settings = request.app.state.settings
    return {
        "nav": "classify",
        "runs": [{"id": run.id, "name": run.name, "label": known[run.kind].label(run.params)} for run in runs],
        "training_kinds": list(known),
        "chosen": run,
        "most_bytes": settings.max_upload_bytes,
        "most_pixels": settings.max_image_pixels,
        "answer": None,
        "classes": [],
        "problem": "",
    }


@router.get("/classify", name="classify_page")
def show(request: Request, run: Annotated[int | None, Query()] = None) -> Response:
    """Show the form."""
    return rendering.page(request, "pages/classify/show.html", **_context(request, run))


@router.post("/classify", name="classify")
async def classify(request: Request, run: Annotated[str, Query(max_length=20)] = "") -> Response:
    """Classify the uploaded picture; a refusal is shown on the page with its reason and status."""
    from anyio import to_thread

    run_id = int(run) if run.isascii() and run.isdigit() else None
    context = await to_thread.run_sync(_context, request, run_id)
    try:
        data = await read_upload(request, request.app.state.settings.max_upload_bytes)
        answer = await classify_upload(request, data, run_id)
    except Problem as problem:
        response = _answer(request, problem.status, {**context, "problem": problem.detail})
        response.headers.update(problem.headers)
        return response
    ranked = sorted(answer.probabilities.items(), key=lambda item: -item[1])
    return _answer(request, 200, {**context, "answer": answer, "classes": ranked})


def _answer(request: Request, status: int, context: dict[str, Any]) -> Response:
    partly = request.headers.get("hx-request") == "true"
    return rendering.page(request, "partials/_answer.html" if partly else "pages/classify/show.html", status, **context)
