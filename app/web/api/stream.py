"""`/runs/{id}/stream`: everything that happens to a run as server-sent events, from any place through its end."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

import orjson
from fastapi import APIRouter, Header, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from app.db import read_session
from app.runs.errors import NotFound
from app.runs.store import get_run
from app.runs.telemetry.cursor import LONGEST, Cursor, decode
from app.runs.telemetry.feed import pull
from app.runs.telemetry.items import EventFilter, Item, OutputFilter, Wanted
from app.web.api.answers import answers
from app.web.api.telemetry import EventType, RankNumber, StageName
from app.web.security.sessions import Admission
from app.web.streams import HEADERS, HEARTBEAT, HEARTBEAT_SECONDS, Live, wait_out

router = APIRouter(prefix="/runs/{run_id}", tags=["telemetry"])

RETRY: Final = b"retry: 1000\n\n"
FROM_THE_START: Final = ("", "0")
ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Server-sent events `event`, `log`, `state`, `end`", "content": {"text/event-stream": {}}},
    204: {"description": "The cursor is past the end: nothing will follow"},
}
Part = Literal["event", "log", "state"]


@router.get("/stream", responses={**answers(404), **ANSWERS}, response_class=StreamingResponse)
async def stream(
    *,
    request: Request,
    run_id: int,
    after: Annotated[str, Query(max_length=LONGEST)] = "",
    last_event_id: Annotated[str | None, Header(max_length=LONGEST)] = None,
    only: Annotated[list[Part] | None, Query(description="Only items of these types; `end` is always sent.")] = None,
    stage: Annotated[StageName | None, Query(description="Only events and output of this stage.")] = None,
    rank: Annotated[RankNumber | None, Query(description="Only events and output of this rank.")] = None,
    type: Annotated[EventType | None, Query(description="Only events of this type.")] = None,  # noqa: A002  # the name in the URL
) -> Response:
    """Follow a run from its first item, or from a cursor, through its end.

    A cursor belongs to its run and filters; with others it is refused.
    """
    wanted = Wanted(
        moves=_asked("state", only),
        events=EventFilter(stage=stage, rank=rank, type=type) if _asked("event", only) else None,
        output=OutputFilter(stage=stage, rank=rank) if _asked("log", only) else None,
    )
    text, of = last_event_id or after, wanted.owner(run_id)
    cursor = decode(text, of) if text not in FROM_THE_START else Cursor(of=of)
    await run_in_threadpool(_require, request, run_id)
    if cursor.ended:
        return Response(status_code=204)
    return StreamingResponse(_frames(request, run_id, cursor, wanted), 200, HEADERS, "text/event-stream")


def _asked(part: Part, only: list[Part] | None) -> bool:
    return not only or part in only


def _require(request: Request, run_id: int) -> None:
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)


async def _frames(request: Request, run_id: int, cursor: Cursor, wanted: Wanted) -> AsyncIterator[bytes]:
    """Yield what comes after `cursor` through the end."""
    live: Live = request.app.state.live
    yield RETRY
    admission = Admission(request)
    with live.channel(run_id) as channel:
        while not live.closing:
            tick = channel.tick
            read = partial(run_in_threadpool, _read, request, run_id, cursor, wanted)
            try:
                if not await admission.holds():
                    return
                found = await channel.shared((cursor, wanted), read)
            except NotFound:  # deleted while it was followed
                return
            except Exception as error:
                await wait_out(error)
                yield HEARTBEAT
                continue
            cursor = found.cursor
            if found.frames:
                yield found.frames
                if cursor.ended:
                    return
            elif await channel.beyond(tick, HEARTBEAT_SECONDS) == tick:
                yield HEARTBEAT


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    """One reading, encoded once for all streams at the same position."""

    frames: bytes
    cursor: Cursor


def _read(request: Request, run_id: int, cursor: Cursor, wanted: Wanted) -> Frames:
    state = request.app.state
    with read_session(state.engine) as session:
        reading = pull(session, state.settings.runs_dir, run_id, cursor, wanted)
    return Frames(frames=b"".join(encode(item) for item in reading.items), cursor=reading.cursor)


def encode(item: Item) -> bytes:
    """Return one item as a server-sent event."""
    head = f"id: {item.cursor.encode()}\nevent: {item.type}\ndata: ".encode()
    return head + orjson.dumps(item.data) + b"\n\n"
