"""`/runs/{id}/live`: changes of a run's page, as they happen."""

from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from app.db import read_session
from app.runs.errors import Refused
from app.runs.store import get_run
from app.runs.telemetry.cursor import LONGEST, Cursor, decode
from app.web.forms.log import LogQuery
from app.web.http.problems import Problem
from app.web.runlog.following import Place
from app.web.runlog.messages import live_messages
from app.web.streams import HEADERS
from app.web.views import rendering

router = APIRouter(include_in_schema=False)


@router.get("/runs/{run_id:int}/live", name="run_live")
async def live(
    request: Request,
    run_id: int,
    query: Annotated[LogQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=LONGEST)] = None,
) -> StreamingResponse:
    """Stream changes of a run's page until it has ended; a cursor in `Last-Event-ID` takes precedence over `after`."""
    text, of = last_event_id or query.after, query.owner(run_id)
    try:
        cursor = decode(text, of) if text else Cursor(of=of)
    except Refused as refusal:
        raise Problem(422, "invalid_cursor", f"{refusal.detail}; reload the page") from None
    await to_thread.run_sync(_require, request, run_id)
    place = Place(
        run_id=run_id,
        cursor=cursor,
        wanted=query.filter(),
        role=rendering.role(request),
        prefix=rendering.prefix(request),
    )
    return StreamingResponse(live_messages(request, place), 200, HEADERS, "text/event-stream")


def _require(request: Request, run_id: int) -> None:
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)
