"""`/runs/{id}/live`: what changes on a run's page, as HTML parts, from the place the page was rendered at.

Unnamed messages carry parts, each with its own target; their ids are places in the log, so a reader that comes back
sends the last one and misses and repeats nothing. The message `numbers` says that new metrics exist; `end` closes.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Final

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from app.db import read_session
from app.runs.errors import NotFound, Refused
from app.runs.store import get_run
from app.runs.telemetry.cursor import START, Cursor, decode
from app.web.http.problems import Problem
from app.web.pages.run import LogQuery
from app.web.runlog.following import Place, Reading, read_shared
from app.web.streams import HEADERS, HEARTBEAT, HEARTBEAT_SECONDS, Live
from app.web.views import rendering

router = APIRouter(include_in_schema=False)

PAUSE_SECONDS: Final = 0.3
"""Between two messages, so that a busy run costs a page three drawings a second."""


@router.get("/runs/{run_id:int}/live", name="run_live")
async def live(
    request: Request,
    run_id: int,
    query: Annotated[LogQuery, Query()],
    last_event_id: Annotated[str | None, Header(max_length=20_000)] = None,
) -> StreamingResponse:
    """Stream what changes on the page of a run until it has ended; a cursor in `Last-Event-ID` wins over `after`."""
    text = last_event_id or query.after
    try:
        cursor = decode(text) if text else START
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
    return StreamingResponse(_messages(request, place), 200, HEADERS, "text/event-stream")


def _require(request: Request, run_id: int) -> None:
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)


async def _messages(request: Request, place: Place) -> AsyncIterator[str | bytes]:
    live: Live = request.app.state.live
    shown: dict[str, str] = {}
    with live.channel(place.run_id) as channel:
        while not live.closing:
            tick = channel.tick
            try:
                reading = await read_shared(request, channel, place)
            except NotFound:  # deleted while somebody looked at it
                yield sse("deleted", event="end")
                return
            for message in _news(request, reading, shown):
                yield message
            if reading.final:
                yield sse("final", event="end")
                return
            await asyncio.sleep(PAUSE_SECONDS)
            if reading.cursor != place.cursor:
                place = replace(place, cursor=reading.cursor)
                continue  # a reading is bounded: there may be more
            if await channel.beyond(tick, HEARTBEAT_SECONDS) == tick:
                yield HEARTBEAT


def _news(request: Request, reading: Reading, shown: dict[str, str]) -> list[str]:
    """Return the messages for what this reader does not show yet, and note that it does now."""
    messages = []
    for batch in reading.batches:
        lines = {"target": "log-lines", "swap": "beforeend", "html": batch.html}
        messages.append(_message(request, [lines], batch.cursor))
    changed = {name: html for name, html in reading.parts.items() if shown.get(name) != html}
    shown.update(changed)
    parts = [{"target": f"run-{name}", "swap": _swap(name), "html": html} for name, html in changed.items()]
    if parts:
        messages.append(_message(request, parts, reading.cursor))
    if reading.numbers:
        messages.append(sse("new", event="numbers"))
    return messages


def _message(request: Request, parts: list[dict[str, str]], cursor: Cursor) -> str:
    return sse(rendering.fragment(request, "partials/_live.html", parts=parts), cursor=cursor.encode())


def _swap(name: str) -> str:
    # Morphing keeps an open menu and the focus; a result arrives once, and charts build their own children.
    return "innerHTML" if name == "result" else "innerMorph"


def sse(data: str, *, cursor: str = "", event: str = "") -> str:
    """Return one server-sent message."""
    lines = [f"id: {cursor}"] if cursor else []
    lines += [f"event: {event}"] if event else []
    # Every line break the format knows must start a new data line, or the rest of the text would be dropped.
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return "\n".join(lines) + "\n\n"
