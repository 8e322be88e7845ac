"""`/runs/{id}/live`: what changes on a run's page, as HTML parts, from the place the page was rendered at.

Unnamed messages carry parts, each with its own target; their ids are places in the log, so a reader that comes back
sends the last one and misses and repeats nothing. The message `numbers` says that new metrics exist; `end` closes.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from app.db import read_session
from app.runs.errors import NotFound
from app.runs.store import get_run, get_run_document
from app.web.live import HEARTBEAT_SECONDS, Live
from app.web.pages import rendering
from app.web.pages.loglines import LogCursor, LogFilter, LogLine
from app.web.pages.logtail import LogScope, read_more
from app.web.pages.run import LogQuery
from app.web.pages.runview import run_context
from app.web.problems import Problem

router = APIRouter(include_in_schema=False)

PARTS: Final = ("head", "verdict", "facts", "stages", "ranks", "history")
"""Sent whenever their text changed; the result is sent once, at the end."""
PAUSE_SECONDS: Final = 0.3
"""Between two messages, so that a busy run costs a page three drawings a second."""
HEARTBEAT: Final = ": still here\n\n"
MOST_LINES: Final = 500
"""Log lines in one message."""


@dataclass(slots=True, kw_only=True)
class Follower:
    """One reader of a run's page: how far it has come and what it already shows."""

    request: Request
    run_id: int
    cursor: LogCursor
    wanted: LogFilter
    shown: dict[str, str] = field(default_factory=dict)
    final: bool = False
    numbers: bool = False

    def step(self) -> list[str]:
        """Return the messages for everything that is new; `final` is set when nothing can follow.

        The state is read before the log: a run seen as ended has written all its lines by then.
        """
        state = self.request.app.state
        with read_session(state.engine) as session:
            run = get_run_document(session, self.run_id)
            scope = LogScope(
                root=state.settings.runs_dir / str(self.run_id),
                run_id=self.run_id,
                stages=run["stages"],
                wanted=self.wanted,
            )
            lines, self.numbers = read_more(session, scope, self.cursor)
            context = run_context(state.settings.runs_dir, run)
            messages = self._log_messages(lines)
            while context["final"] and lines:  # drain: this stream is about to end
                lines, _ = read_more(session, scope, self.cursor)
                messages += self._log_messages(lines)
        parts = self._changed(context)
        self.final = context["final"]
        return [*messages, self._message(parts)] if parts else messages

    def _changed(self, context: dict[str, Any]) -> list[dict[str, str]]:
        names = [*PARTS, "result"] if context["final"] else list(PARTS)
        parts = []
        for name in names:
            html = rendering.fragment(self.request, f"partials/_run_{name}.html", **context)
            if self.shown.get(name) != html:
                self.shown[name] = html
                parts.append({"target": f"run-{name}", "swap": _swap(name), "html": html})
        return parts

    def _log_messages(self, lines: list[LogLine]) -> list[str]:
        if not lines:
            return []
        dropped = len(lines) - MOST_LINES
        if dropped > 0:
            note = f"{dropped:,} lines are not shown here; download the whole files above"
            lines = [LogLine(source="", text=note, css="sys"), *lines[-MOST_LINES:]]
        html = rendering.fragment(self.request, "partials/_log_lines.html", lines=lines)
        return [self._message([{"target": "log-lines", "swap": "beforeend", "html": html}])]

    def _message(self, parts: list[dict[str, str]]) -> str:
        return sse(rendering.fragment(self.request, "partials/_live.html", parts=parts), cursor=self.cursor.encode())


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
        cursor = LogCursor.decode(text) if text else LogCursor()
    except ValueError as error:
        raise Problem(422, "invalid_cursor", f"after: {error}; reload the page") from None
    await to_thread.run_sync(_require, request, run_id)
    follower = Follower(request=request, run_id=run_id, cursor=cursor, wanted=query.filter())
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_messages(follower), media_type="text/event-stream", headers=headers)


def _require(request: Request, run_id: int) -> None:
    with read_session(request.app.state.engine) as session:
        get_run(session, run_id)


async def _messages(follower: Follower) -> AsyncIterator[str]:
    live: Live = follower.request.app.state.live
    with live.channel(follower.run_id) as channel:
        while not live.closing:
            tick, before = channel.tick, follower.cursor.encode()
            try:
                messages = await to_thread.run_sync(follower.step)
            except NotFound:  # deleted while somebody looked at it
                yield sse("deleted", event="end")
                return
            for message in messages:
                yield message
            if follower.numbers:
                yield sse("new", event="numbers")
            if follower.final:
                yield sse("final", event="end")
                return
            await asyncio.sleep(PAUSE_SECONDS)
            if follower.cursor.encode() != before:
                continue  # a reading is bounded: there may be more
            if await channel.beyond(tick, HEARTBEAT_SECONDS) == tick:
                yield HEARTBEAT
