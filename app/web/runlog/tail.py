"""The log at the moment a page is rendered, and what came after it: the same lines in both, none twice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlmodel import Session

from app.runs.store import get_run
from app.runs.telemetry.events import EVENTS_LIMIT, count_events, events, newest_events
from app.web.runlog.lines import (
    MOST_LINES,
    TEXT_EVENTS,
    LogCursor,
    LogFilter,
    LogLine,
    event_line,
    left_out,
    log_files,
    more,
    tail,
)

COUNT_ALL: Final = 32_000_000
"""Bytes read of all files together to count their lines when a page is rendered."""
FEWEST_LINES: Final = 25
"""Shown of every file, however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """Lines of the log, and the place after them."""

    lines: list[LogLine]
    cursor: LogCursor
    total: int
    """Lines there are, as far as they were counted: those shown, and those the notes stand for."""
    uncounted: int
    """Bytes of output whose lines were not counted."""

    @property
    def shown(self) -> int:
        """Lines shown."""
        return sum(not line.is_note for line in self.lines)


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
    wanted, messages, total = scope.wanted, list[LogLine](), 0
    if wanted.stream in ("", "messages"):
        messages = _last_messages(session, scope, last)
        total = count_events(
            session, scope.run_id, TEXT_EVENTS, last=last, stage=wanted.stage or None, rank=wanted.rank
        )
    if total > len(messages):
        messages.insert(0, left_out("messages", total - len(messages)))
    printed: list[LogLine] = []
    files = list(log_files(scope.root, scope.stages, wanted))
    most, countable = max(FEWEST_LINES, MOST_LINES // max(1, len(files))), COUNT_ALL // max(1, len(files))
    for log in files:
        printed += tail(log, cursor, most=most, countable=countable)
    total += sum(line.left_lines if line.is_note else 1 for line in printed)
    return LogView(
        lines=messages + printed, cursor=cursor, total=total, uncounted=sum(line.left_bytes for line in printed)
    )


def _last_messages(session: Session, scope: LogScope, last: int) -> list[LogLine]:
    wanted = scope.wanted
    found = [
        item
        for kind in sorted(TEXT_EVENTS)
        for item in newest_events(
            session, scope.run_id, kind, last=last, stage=wanted.stage or None, rank=wanted.rank, limit=MOST_LINES
        )
    ]
    lines = (event_line(item) for item in sorted(found, key=lambda item: int(item["id"]))[-MOST_LINES:])
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
