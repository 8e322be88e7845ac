"""The log at the moment a page is rendered, and what came after it: the same lines in both, none twice."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlmodel import Session

from app.runs.events import EVENTS_LIMIT, events
from app.runs.store import get_run
from app.web.pages.loglines import (
    MOST_LINES,
    TEXT_EVENTS,
    LogCursor,
    LogFilter,
    LogLine,
    event_line,
    log_files,
    more,
    tail,
)

LOOK_BACK: Final = 50_000
"""Events looked through for messages when a page is rendered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """Lines of the log, and the place after them."""

    lines: list[LogLine]
    cursor: LogCursor
    skipped: int
    """Lines left out before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogScope:
    """Whose log is read, and what of it."""

    root: Path
    """Folder of the run."""
    run_id: int
    stages: Sequence[Mapping[str, Any]]
    """Of the run's document."""
    wanted: LogFilter


def render_tail(session: Session, scope: LogScope) -> LogView:
    """Return the newest lines: timed messages in order, then what the ranks printed, file by file."""
    last = get_run(session, scope.run_id).next_event_id - 1
    cursor = LogCursor(event=last)
    messages = _last_messages(session, scope, last) if scope.wanted.stream in ("", "messages") else []
    printed: list[LogLine] = []
    for log in log_files(scope.root, scope.stages, scope.wanted):
        printed += tail(log, cursor)
    kept = messages[-MOST_LINES:] + printed[-MOST_LINES:]
    return LogView(lines=kept, cursor=cursor, skipped=len(messages) + len(printed) - len(kept))


def _last_messages(session: Session, scope: LogScope, last: int) -> list[LogLine]:
    wanted, run_id = scope.wanted, scope.run_id
    found: deque[dict[str, Any]] = deque()
    for event_type in sorted(TEXT_EVENTS):
        newest: deque[dict[str, Any]] = deque(maxlen=MOST_LINES)
        after = max(0, last - LOOK_BACK)
        while True:
            page = events(session, run_id, after=after, event_type=event_type, rank=wanted.rank, limit=EVENTS_LIMIT)
            newest.extend(item for item in page["items"] if item["id"] <= last)
            after = page["next_after"]
            if len(page["items"]) < EVENTS_LIMIT:
                break
        found.extend(newest)
    lines = (event_line(item) for item in sorted(found, key=lambda item: int(item["id"])) if _wanted(item, wanted))
    return [line for line in lines if line is not None]


def _wanted(item: Mapping[str, Any], wanted: LogFilter) -> bool:
    return wanted.wants(item["stage"], item["rank"], "messages")


def read_more(session: Session, scope: LogScope, cursor: LogCursor) -> tuple[list[LogLine], bool]:
    """Return (lines after the cursor, whether numbers came too) and move the cursor behind them; bounded."""
    lines: list[LogLine] = []
    numbers = False
    page = events(session, scope.run_id, after=cursor.event, limit=EVENTS_LIMIT)
    for item in page["items"]:
        numbers = numbers or item["type"] == "metrics"
        line = event_line(item) if scope.wanted.stream in ("", "messages") and _wanted(item, scope.wanted) else None
        if line is not None:
            lines.append(line)
    cursor.event = page["next_after"]
    for log in log_files(scope.root, scope.stages, scope.wanted):
        lines += more(log, cursor)
    return lines, numbers
