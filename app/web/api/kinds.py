"""Kinds, and runs side by side."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.runs.kinds import KindList, kind_documents
from app.runs.results.compare import Comparison, compare, read_ids
from app.runs.results.reading import read_results
from app.runs.telemetry.series import FEWEST_POINTS
from app.web.api.answers import answers
from app.web.api.replies import AppSettings, ReadSession, cached_reply

router = APIRouter(tags=["catalogue"])


@router.get("/kinds", response_model=KindList, responses=answers())
def list_kinds(request: Request) -> Response:
    """List the kinds with the JSON Schema of their parameters and their presets."""
    return cached_reply(request, KindList(items=kind_documents()))


@router.get("/compare", responses=answers(404))
def compare_runs(
    session: ReadSession,
    settings: AppSettings,
    ids: Annotated[str, Query(max_length=400, examples=["1,2"])],
    max_points: Annotated[int, Query(ge=FEWEST_POINTS, le=5000)] = 500,
) -> Comparison:
    """Compare two to ten runs side by side: parameters, checks, summaries, metrics."""
    wanted = read_ids(ids)
    results = [reading.document for reading in read_results(settings.runs_dir, wanted)]
    return compare(session, wanted, results, max_points)
