"""`/compare`: two to ten runs side by side."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.db import read_session
from app.formats import parameter, telling_apart
from app.runs.errors import ServiceError
from app.runs.results.bounds import bound, measured, writer
from app.runs.results.compare import ComparedCheck, ComparedChecks, Comparison, compare, read_ids
from app.runs.results.reading import read_results
from app.runs.store import list_runs
from app.web.charts.comparison import curves, matrix_pairs
from app.web.charts.metrics import FIRST_CHARTS, MOST_CHARTS
from app.web.views import rendering
from app.web.views.markdown import table

router = APIRouter(include_in_schema=False)


@router.get("/compare", name="compare_page")
def show(
    request: Request,
    ids: Annotated[str, Query(max_length=400)] = "",
    run: Annotated[list[str] | None, Query(max_length=50)] = None,
    metric: Annotated[str, Query(max_length=200)] = "",
    charts: Annotated[int, Query(ge=1, le=MOST_CHARTS)] = FIRST_CHARTS,
) -> Response:
    """Show the comparison; without runs, or with invalid ones, the form to choose them."""
    wanted = ids or ",".join(run or [])
    problem = ""
    if wanted:
        try:
            context = _context(request, read_ids(wanted), metric, charts)
            return rendering.page(request, "pages/compare/show.html", **context)
        except ServiceError as refusal:
            problem = refusal.detail
    with read_session(request.app.state.engine) as session:
        newest = list_runs(session, limit=30).items
    status = 422 if problem else 200
    return rendering.page(
        request, "pages/compare/choose.html", status, nav="compare", runs=newest, wanted=wanted, problem=problem
    )


def _context(request: Request, ids: list[int], metric: str, most: int) -> dict[str, Any]:
    runs_dir = request.app.state.settings.runs_dir
    results = [reading.document for reading in read_results(runs_dir, ids)]
    with read_session(request.app.state.engine) as session:
        document = compare(session, ids, results)
    return {
        "nav": "compare",
        "compared": document,
        "differing": [row for row in document.params if row.differs],
        "equal": [row for row in document.params if not row.differs],
        "curves": curves(results, document.metrics, find=metric, most=most),
        "pairs": matrix_pairs(ids, results),
        "markdown": _markdown(document),
    }


def _check_row(row: ComparedChecks) -> list[Any]:
    write = writer(row.values)

    def text(check: ComparedCheck | None) -> str | None:
        if check is None:
            return None
        found = measured(check, write)
        return found if check.limit is None else f"{found} ({bound(check, write)})"

    return [row.name, *map(text, row.values)]


def _markdown(document: Comparison) -> str:
    heads = [f"run {run.id}" for run in document.runs]
    rows: list[list[Any]] = [["verdict", *(run.verdict or run.state for run in document.runs)]]
    rows += [[row.name, *map(parameter, row.values)] for row in document.params if row.differs]
    rows += map(_check_row, document.checks)
    flat = [row for row in document.summary if not any(isinstance(value, list) for value in row.values)]
    rows += [[row.name, *map(telling_apart(row.values), row.values)] for row in flat]
    return table(["", *heads], rows) + "\n"
