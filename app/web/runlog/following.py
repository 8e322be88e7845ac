"""One reading of a run for its page: what came after a place in the log, and every part of the page as it is now.

Readers at the same place share one reading per tick of the run's channel, so two hundred open pages cost about as much
as one.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakKeyDictionary

from anyio import to_thread
from fastapi import Request

from app.db import read_session
from app.runs.store import get_run_document
from app.web.runlog.lines import LogCursor, LogFilter, LogLine, newest
from app.web.runlog.tail import LogScope, read_more
from app.web.streams import Channel
from app.web.views import rendering
from app.web.views.run import files_context, run_context

PARTS: Final = ("head", "verdict", "facts", "stages", "ranks", "history")
"""Sent whenever their text changed."""
LAST_PARTS: Final = (*PARTS, "result", "files", "outputs")
"""Sent with the end, when everything there will be is there."""
MOST_LINES: Final = 500
"""Log lines in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Who reads what, and from where on."""

    run_id: int
    cursor: str
    wanted: LogFilter
    role: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Log lines as HTML, and the place after them."""

    html: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything new since a place."""

    batches: list[Batch]
    parts: dict[str, str]
    """HTML of each part of the page by its name."""
    cursor: str
    final: bool
    """Whether nothing can follow."""
    numbers: bool
    """Whether metrics came."""


def read(request: Request, place: Place) -> Reading:
    """Return what is new.

    The state is read before the log: a run seen as ended has written all its lines by then. Raises NotFound.
    """
    state = request.app.state
    cursor = LogCursor.decode(place.cursor) if place.cursor else LogCursor()
    with read_session(state.engine) as session:
        run = get_run_document(session, place.run_id)
        root = state.settings.runs_dir / str(place.run_id)
        scope = LogScope(root=root, run_id=place.run_id, stages=run["stages"], wanted=place.wanted)
        context = run_context(state.settings.runs_dir, run)
        if context["final"]:
            context |= files_context(state.settings.runs_dir, run)
        lines, numbers = read_more(session, scope, cursor)
        batches = _batches(request, lines, cursor)
        before = place.cursor
        while context["final"] and cursor.encode() != before:  # drain: the stream is about to end
            before = cursor.encode()
            lines, _ = read_more(session, scope, cursor)
            batches += _batches(request, lines, cursor)
    return Reading(
        batches=batches,
        parts=_parts(request, context),
        cursor=cursor.encode(),
        final=context["final"],
        numbers=numbers,
    )


def _parts(request: Request, context: dict[str, Any]) -> dict[str, str]:
    names = LAST_PARTS if context["final"] else PARTS
    return {name: rendering.fragment(request, f"partials/_run_{name}.html", **context) for name in names}


def _batches(request: Request, lines: list[LogLine], cursor: LogCursor) -> list[Batch]:
    if not lines:
        return []
    html = rendering.fragment(request, "partials/_log_lines.html", lines=newest(lines, MOST_LINES))
    return [Batch(html=html, cursor=cursor.encode())]


@dataclass(slots=True, weakref_slot=True)
class Shared:
    """Readings of one channel in its present tick."""

    tick: int = -1
    tasks: dict[Place, asyncio.Task[Reading]] = field(default_factory=dict)

    def reading(self, tick: int, place: Place, start: Callable[[], Awaitable[Reading]]) -> asyncio.Task[Reading]:
        """Return the reading for a place, started once per tick."""
        if tick != self.tick:
            self.tick, self.tasks = tick, {}
        if place not in self.tasks:
            self.tasks[place] = asyncio.ensure_future(start())
        return self.tasks[place]


_SHARED: Final[WeakKeyDictionary[Channel, Shared]] = WeakKeyDictionary()


async def read_shared(request: Request, channel: Channel, place: Place) -> Reading:
    """Return the reading for a place; whoever asks first in this tick starts it. Call it in the event loop."""
    shared = _SHARED.setdefault(channel, Shared())

    async def start() -> Reading:
        return await to_thread.run_sync(read, request, place)

    return await asyncio.shield(shared.reading(channel.tick, place, start))  # a reader that leaves takes nothing away
