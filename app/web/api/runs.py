"""Runs: list, create, show, edit, cancel, retry, delete."""

from typing import Annotated, Final

from fastapi import APIRouter, Body, Header, Query, Request
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from app.db import read_session
from app.runs.documents import RunDocument, RunList
from app.runs.editing import Changes, edit_run
from app.runs.ordering import Order
from app.runs.removal import delete_run
from app.runs.requests import RunRequest
from app.runs.results.columns import MOST, ListedRun, ListedRuns, column_values, read_columns
from app.runs.store import PAGE_LIMIT, get_run_document, list_runs
from app.web.api.answers import answers
from app.web.api.filters import Filters
from app.web.api.replies import Actor, AppSettings, ReadSession, Verbs, cached_reply

router = APIRouter(prefix="/runs", tags=["runs"])
COL: Final = "Add to each run's `columns`: `check` (its main check), `check:NAME`, `param:NAME`."


class RetryRequest(BaseModel):
    """Body of a retry; optional."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    resume: bool = False


@router.get("", responses=answers())
def list_(
    *,
    session: ReadSession,
    settings: AppSettings,
    filters: Filters,
    sort: Order = Order.NEWEST,
    limit: Annotated[int, Query(ge=1, le=PAGE_LIMIT)] = 50,
    cursor: Annotated[str | None, Query(max_length=200)] = None,
    col: Annotated[list[str] | None, Query(max_length=MOST, description=COL)] = None,
) -> RunList | ListedRuns:
    """List runs in the order of `sort`: `pinned` lists pinned runs first; `finished` lists the last finished first.

    `longest` and `shortest` use the time from start to end. In these last three, runs without the value come last. A
    repeated parameter means any of its values, for tags all of them. A cursor belongs to its filters and order; with
    others it is refused.
    """
    columns = read_columns(col or ())
    page = list_runs(session, filters, order=sort, cursor=cursor, limit=limit)
    if not columns:
        return page
    values = column_values(session, settings.runs_dir, page.items, columns)
    items = [ListedRun(**dict(run), columns=values[run.id]) for run in page.items]
    return ListedRuns(items=items, next_cursor=page.next_cursor)


@router.post("", status_code=201, responses=answers(403, 413))
def create(
    *,
    request: Request,
    response: Response,
    body: RunRequest,
    verbs: Verbs,
    actor: Actor,
    idempotency_key: Annotated[str | None, Header()] = None,
) -> RunDocument:
    """Record a run; a worker executes it as soon as devices are free."""
    return _created(request, response, verbs.submit(body, actor=actor, key=idempotency_key))


@router.get("/{run_id}", response_model=RunDocument, responses=answers(404))
def show(request: Request, run_id: int, session: ReadSession) -> Response:
    """Return all details of a run."""
    return cached_reply(request, get_run_document(session, run_id))


@router.patch("/{run_id}", responses=answers(403, 404, 413))
def edit(request: Request, run_id: int, body: Changes, actor: Actor) -> RunDocument:
    """Change name, tags, notes or pin of a run in any state; absent fields change nothing."""
    edit_run(request.app.state.engine, run_id, body, actor=actor)
    return _document(request, run_id)


@router.post("/{run_id}/cancel", status_code=202, responses=answers(403, 404, 409))
def cancel(request: Request, run_id: int, verbs: Verbs, actor: Actor) -> RunDocument:
    """Cancel a run; it is `stopping` until every process has ended. Repeating the request changes nothing."""
    verbs.cancel(run_id, actor=actor)
    return _document(request, run_id)


@router.post("/{run_id}/retry", status_code=201, responses=answers(403, 404, 409))
def retry(
    *,
    request: Request,
    response: Response,
    run_id: int,
    verbs: Verbs,
    actor: Actor,
    body: Annotated[RetryRequest | None, Body()] = None,
) -> RunDocument:
    """Repeat an ended run as a new run; with `resume` from its newest valid checkpoint."""
    return _created(request, response, verbs.retry(run_id, resume=body is not None and body.resume, actor=actor))


@router.delete("/{run_id}", status_code=204, responses=answers(403, 404, 409))
def delete(request: Request, run_id: int, settings: AppSettings, actor: Actor) -> Response:
    """Delete an ended run with its files."""
    delete_run(request.app.state.engine, settings, run_id, actor=actor)
    return Response(status_code=204)


def _document(request: Request, run_id: int) -> RunDocument:
    with read_session(request.app.state.engine) as session:
        return get_run_document(session, run_id)


def _created(request: Request, response: Response, run_id: int) -> RunDocument:
    prefix = str(request.scope.get("root_path") or "")
    response.headers["Location"] = f"{prefix}/api/v1/runs/{run_id}"
    return _document(request, run_id)
