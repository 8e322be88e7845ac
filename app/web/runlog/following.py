"""One reading of a run for its page: the items after a position in the log, and every part of the page as it is now.

Readers at the same position share one reading per tick of the run's channel, so two hundred open pages cost about as
much as one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from anyio import to_thread
from fastapi import Request

from app.db import read_session
from app.runs.store import get_run_document
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.feed import pull
from app.runs.telemetry.items import Item, Wanted
from app.web.runlog.lines import LogFilter, LogLine, event_line, newest, output_lines
from app.web.streams import Channel
from app.web.views import rendering
from app.web.views.run import files_context, run_context

PARTS: Final = ("head", "announcement", "verdict", "facts", "stages", "ranks", "history")
"""Parts that are sent whenever their HTML changes."""
LAST_PARTS: Final = (*PARTS, "lead", "deciding", "checks", "result", "environment", "files", "outputs")
"""Parts that are sent at the end, when they are complete."""
MOST_LINES: Final = 500
"""Maximum number of log lines in one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A reader's run, filter and position."""

    run_id: int
    cursor: Cursor
    wanted: LogFilter
    role: str
    prefix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Log lines as HTML, and the position after them."""

    html: str
    cursor: Cursor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Everything new since a position."""

    batches: list[Batch]
    parts: dict[str, str]
    """HTML of each part of the page by its name."""
    cursor: Cursor
    final: bool
    """Whether this is the end."""
    numbers: bool
    """Whether there are new metrics."""
    many_ranks: bool
    """Whether the page shows the ranks by node."""


def read(request: Request, place: Place) -> Reading:
    """Return what is new; for an ended run, everything that remains. Raises NotFound."""
    state = request.app.state
    runs_dir, cursor = state.settings.runs_dir, place.cursor
    wanted = Wanted(moves=False, output=place.wanted.output())
    batches, numbers, more = list[Batch](), False, True
    with read_session(state.engine) as session:
        # One snapshot: a run that is seen as ended has already written all its output.
        context = run_context(runs_dir, get_run_document(session, place.run_id))
        while more:
            found = pull(session, runs_dir, place.run_id, cursor, wanted)
            cursor = found.cursor
            numbers = numbers or any(item.type == "event" and item.data["type"] == "metrics" for item in found.items)
            lines = _lines(runs_dir / str(place.run_id), found.items, place.wanted)
            batches += _batches(request, lines, cursor)
            more = context["final"] and bool(found.items) and not cursor.ended
    if context["final"]:
        context |= files_context(runs_dir, context["run"])
    return Reading(
        batches=batches,
        parts=_parts(request, context),
        cursor=cursor,
        final=context["final"],
        numbers=numbers,
        many_ranks=context["ranks"].grouped,
    )


def _lines(root: Path, items: Sequence[Item], wanted: LogFilter) -> list[LogLine]:
    """Return messages in order, then output."""
    lines: list[LogLine] = []
    for item in items:
        if item.type == "log":
            lines += output_lines(root, item.data)
        elif item.type == "event" and wanted.wants(item.data["stage"], item.data["rank"], "messages"):
            line = event_line(item.data)
            lines += [line] if line is not None else []
    return lines


def _parts(request: Request, context: dict[str, Any]) -> dict[str, str]:
    names = LAST_PARTS if context["final"] else PARTS
    return {name: rendering.fragment(request, f"partials/_run_{name}.html", **context) for name in names}


def _batches(request: Request, lines: list[LogLine], cursor: Cursor) -> list[Batch]:
    if not lines:
        return []
    html = rendering.fragment(request, "partials/_log_lines.html", lines=newest(lines, MOST_LINES))
    return [Batch(html=html, cursor=cursor)]


async def read_shared(request: Request, channel: Channel, place: Place) -> Reading:
    """Return the reading for a position; the first request of a tick makes it. Call it in the event loop."""
    return await channel.shared(place, partial(to_thread.run_sync, read, request, place))
