"""The log when a page is rendered: its newest lines, and the cursor from which the live stream continues."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from app.db import Session
from app.runs.models import StageAttempt
from app.runs.store import get_run, stages_of
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.events import count_events, newest_events
from app.runs.telemetry.feed import is_over, place_of
from app.runs.telemetry.logs import LogFile, attempt_logs, read_piece
from app.web.runlog.lines import (
    COUNT_BYTES,
    TEXT_EVENTS,
    LogFilter,
    LogLine,
    event_line,
    left_out,
    newest,
    skipped_note,
    text_lines,
)

TAIL_BYTES: Final = 24_000
"""Maximum bytes shown of each file."""
COUNT_ALL: Final = 32_000_000
"""Maximum bytes read of all files together to count their lines."""
MOST_LINES: Final = 400
FEWEST_LINES: Final = 25
"""Minimum number of lines shown of each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """Lines of the log, and the position after them."""

    lines: list[LogLine]
    cursor: Cursor
    total: int
    """Number of lines as far as counted: those shown, and those represented by notes."""
    uncounted: int
    """Bytes of output whose lines were not counted."""

    @property
    def shown(self) -> int:
        """Number of lines shown."""
        return sum(not line.is_note for line in self.lines)


def render_tail(session: Session, runs_dir: Path, run_id: int, wanted: LogFilter) -> LogView:
    """Return the newest lines: timed messages in order, then what the ranks printed, file by file."""
    run = get_run(session, run_id)
    attempts = [row for row in stages_of(session, run_id) if row.attempt > 0]
    cursor = _cursor(run.next_event_id - 1, attempts)
    messages, total = _messages(session, run_id, wanted, cursor.event)
    printed: list[LogLine] = []
    root = runs_dir / str(run_id)
    files = [
        (row, log)
        for row in attempts
        for log in _files(root, row, wanted, ended=row is not attempts[-1] or is_over(run, row))
    ]
    share = max(1, len(files))
    for row, log in files:
        lines, offset = tail(log, most=max(FEWEST_LINES, MOST_LINES // share), countable=COUNT_ALL // share)
        printed += lines
        if row is attempts[-1]:  # those before it are over, and a cursor in a later attempt is behind them
            cursor = cursor.with_offset(place_of(log), offset)
    total += sum(line.left_lines if line.is_note else 1 for line in printed)
    uncounted = sum(line.left_bytes for line in printed)
    return LogView(lines=messages + printed, cursor=cursor, total=total, uncounted=uncounted)


def _cursor(event: int, attempts: list[StageAttempt]) -> Cursor:
    cursor = Cursor(event=event)
    return replace(cursor, position=attempts[-1].position, attempt=attempts[-1].attempt) if attempts else cursor


def _files(root: Path, row: StageAttempt, wanted: LogFilter, *, ended: bool) -> Iterator[LogFile]:
    for log in attempt_logs(root, row.stage, row.attempt, ended=ended):
        if wanted.wants(log.stage, log.rank, log.stream):
            yield log


def _messages(session: Session, run_id: int, wanted: LogFilter, last: int) -> tuple[list[LogLine], int]:
    """Return the newest messages in order, after a note about earlier ones, and their total number."""
    if wanted.stream not in ("", "messages"):
        return [], 0
    stage, rank = wanted.stage or None, wanted.rank
    found = [
        item
        for kind in sorted(TEXT_EVENTS)
        for item in newest_events(session, run_id, kind, last=last, stage=stage, rank=rank, limit=MOST_LINES)
    ]
    lines = (event_line(item) for item in sorted(found, key=lambda item: int(item["id"]))[-MOST_LINES:])
    messages = [line for line in lines if line is not None]
    total = count_events(session, run_id, TEXT_EVENTS, last=last, stage=stage, rank=rank)
    if total > len(messages):
        messages.insert(0, left_out("messages", total - len(messages)))
    return messages, total


def tail(log: LogFile, *, most: int = MOST_LINES, countable: int = COUNT_BYTES) -> tuple[list[LogLine], int]:
    """Return the last lines of a file, at most `most`, and the byte after them.

    Omitted earlier output is represented by a note before them, which counts its lines if they are within `countable`
    bytes.
    """
    piece = read_piece(log, -TAIL_BYTES, TAIL_BYTES, whole_lines=True, from_line=True)
    notes = [skipped_note(log, 0, piece.offset, countable)] if piece.offset and piece.text else []
    return newest(notes + text_lines(log, piece.text), most), piece.next_offset
