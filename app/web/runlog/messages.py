"""The live stream of a run's page: changes as HTML parts, from the position at which the page was rendered.

Unnamed messages contain parts, each with its own target; their ids are positions in the log, so a reader that
reconnects sends the last one and misses and repeats nothing. The message `numbers` says that new metrics exist; `end`
closes.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from fastapi import Request

from app.runs.errors import NotFound
from app.runs.telemetry.cursor import Cursor
from app.web.runlog.following import Place, Reading, read_shared
from app.web.security.sessions import Admission
from app.web.streams import HEARTBEAT, HEARTBEAT_SECONDS, Live, wait_out
from app.web.views import rendering

PAUSE_SECONDS: Final = 0.3
"""Seconds between two messages, so that a busy run updates a page three times a second."""
LONG_PAUSE_SECONDS: Final = 2.0
"""The same for a run with so many ranks that reading them takes a noticeable time."""


async def live_messages(request: Request, place: Place) -> AsyncIterator[str | bytes]:
    """Yield the messages for a reader at `place` until the run has ended."""
    live: Live = request.app.state.live
    shown: dict[str, str] = {}
    admission = Admission(request)
    with live.channel(place.run_id) as channel:
        while not live.closing:
            tick = channel.tick
            try:
                if not await admission.holds():
                    return
                reading = await read_shared(request, channel, place)
            except NotFound:  # deleted while its page was open
                yield sse("deleted", event="end")
                return
            except Exception as error:
                await wait_out(error)
                yield HEARTBEAT
                continue
            for message in _news(request, reading, shown):
                yield message
            if reading.final:
                yield sse("final", event="end")
                return
            await asyncio.sleep(LONG_PAUSE_SECONDS if reading.many_ranks else PAUSE_SECONDS)
            if reading.cursor != place.cursor:
                place = replace(place, cursor=reading.cursor)
                continue  # a reading is bounded: there may be more
            if await channel.beyond(tick, HEARTBEAT_SECONDS) == tick:
                yield HEARTBEAT


def _news(request: Request, reading: Reading, shown: dict[str, str]) -> list[str]:
    """Return messages with the parts that this reader does not show yet, and record them as shown."""
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
    # Morphing preserves an open menu and the focus; a result arrives once, and charts create their own children.
    return "innerHTML" if name in ("lead", "result") else "innerMorph"


def sse(data: str, *, cursor: str = "", event: str = "") -> str:
    """Return one server-sent message."""
    lines = [f"id: {cursor}"] if cursor else []
    lines += [f"event: {event}"] if event else []
    # Every line break of the format must start a new data line, or the rest of the text would be dropped.
    lines += [f"data: {line}" for line in data.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return "\n".join(lines) + "\n\n"
