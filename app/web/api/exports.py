"""Runs as files: one run with all its data, or every run of a list."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.runs.exports.run import MEDIA_TYPES, Format, Table, run_pieces
from app.runs.exports.runlist import ListTable, list_pieces
from app.runs.ordering import Order
from app.runs.store import get_run
from app.web.api.answers import Answers, answers
from app.web.api.filters import Filters
from app.web.api.replies import AppSettings, ReadSession, streamed

router = APIRouter(prefix="/runs", tags=["exports"])
FILES: Final[dict[str, Any]] = {kind.partition(";")[0]: {} for kind in MEDIA_TYPES.values()}


def _file(*problems: int) -> Answers:
    return {200: {"description": "Success", "content": FILES}, **answers(*problems)}


@router.get("/export", responses=_file(406), response_class=Response)
def export_list(
    *,
    request: Request,
    settings: AppSettings,
    filters: Filters,
    sort: Order = Order.NEWEST,
    format: Annotated[Format, Query()] = "json",  # noqa: A002  # the name in the URL
    table: Annotated[ListTable, Query(description="The runs, or the checks of all runs.")] = "runs",
) -> Response:
    """Return every run that matches the filters of the list, without its limit, as one file."""
    runs_dir, name = settings.runs_dir, f"{table}.{format}"
    return streamed(
        request,
        lambda session: list_pieces(session, runs_dir, filters, sort, form=format, table=table),
        MEDIA_TYPES[format],
        name,
    )


@router.get("/{run_id}/export", responses=_file(404, 406), response_class=Response)
def export_run(
    *,
    request: Request,
    run_id: int,
    session: ReadSession,
    settings: AppSettings,
    format: Annotated[Format, Query()] = "json",  # noqa: A002  # the name in the URL
    table: Annotated[Table, Query(description="For csv and parquet; json contains everything.")] = "metrics",
) -> Response:
    """Return the run as a file: csv and parquet contain one table, json everything including every event."""
    get_run(session, run_id)
    runs_dir = settings.runs_dir
    name = f"run-{run_id}.json" if format == "json" else f"run-{run_id}-{table}.{format}"
    return streamed(
        request,
        lambda db: run_pieces(db, runs_dir, run_id, format, table),
        MEDIA_TYPES[format],
        name,
    )
