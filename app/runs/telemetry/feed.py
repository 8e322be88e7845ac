"""News of a run after a cursor, read once: state changes, rank events, output, and its end.

Every reader uses this module: the stream of the API, the page of a run, and the commands that follow a run.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sqlmodel import Session

from app.runs.documents import Move
from app.runs.models import Run, RunHistory, StageAttempt
from app.runs.states import State
from app.runs.store import get_run, history_of, stages_of
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.events import events_after
from app.runs.telemetry.items import EVERYTHING, STREAMS, Item, OutputFilter, Reading, Wanted
from app.runs.telemetry.logs import LogFile, attempt_logs, read_piece

EVENTS_PER_PULL: Final = 500
PIECE_BYTES: Final = 1 << 16
FLOOD_BYTES: Final = 1 << 20
"""A reader further behind in a log than this gets the newest piece and the number of skipped bytes."""


def pull(session: Session, runs_dir: Path, run_id: int, cursor: Cursor, wanted: Wanted = EVERYTHING) -> Reading:
    """Return a bounded number of items after `cursor`.

    State changes and events come in order of time; `end` comes once, after everything else of an ended run. Raises
    NotFound if the run is gone.
    """
    run = get_run(session, run_id)
    items, more = _moves_and_events(session, run, cursor, wanted)
    cursor = items[-1].cursor if items else cursor
    if wanted.events is not None and not more:  # filtered items are not read again
        cursor = replace(cursor, event=max(cursor.event, run.next_event_id - 1))
    for item in _output(session, runs_dir, run, cursor, wanted.output) if wanted.output is not None else ():
        more, cursor = True, item.cursor
        items.append(item)
    if not more and not cursor.ended and State(run.state).is_final:
        cursor = replace(cursor, ended=True)
        data = {"state": run.state, "reason": run.reason, "verdict": run.verdict}
        items.append(Item(type="end", data=data, cursor=cursor))
    return Reading(items=items, cursor=cursor)


def _moves_and_events(session: Session, run: Run, cursor: Cursor, wanted: Wanted) -> tuple[list[Item], bool]:
    """Return state changes and events in order of time, and whether more events follow."""
    run_id, found = run.id or 0, list[dict[str, Any]]()
    moves = history_of(session, run_id, cursor.move) if wanted.moves else []
    if wanted.events is not None:
        found = events_after(session, run_id, cursor.event, wanted.events, EVENTS_PER_PULL)
    more = len(found) == EVENTS_PER_PULL
    return list(_merged(moves, found, cursor, more=more)), more


def _merged(moves: list[RunHistory], events: list[dict[str, Any]], cursor: Cursor, *, more: bool) -> Iterator[Item]:
    for event in events:
        while moves and moves[0].at.timestamp() <= event["t"]:
            cursor = replace(cursor, move=moves[0].seq)
            yield _state(moves.pop(0), cursor)
        cursor = replace(cursor, event=event["id"])
        yield Item(type="event", data=event, cursor=cursor)
    for move in () if more else moves:
        cursor = replace(cursor, move=move.seq)
        yield _state(move, cursor)


def _state(move: RunHistory, cursor: Cursor) -> Item:
    return Item(type="state", data={"state": move.target, **Move.of(move).model_dump()}, cursor=cursor)


def _output(session: Session, runs_dir: Path, run: Run, cursor: Cursor, wanted: OutputFilter) -> Iterator[Item]:
    """Yield at most one piece per file of the current attempt, moving to the next attempt when all is read."""
    for attempt in stages_of(session, run.id or 0):
        place = (attempt.position, attempt.attempt)
        if attempt.attempt < 1 or place < (cursor.position, cursor.attempt):
            continue
        if place != (cursor.position, cursor.attempt):
            cursor = replace(cursor, position=attempt.position, attempt=attempt.attempt, offsets=())
        over = is_over(run, attempt)
        found = False
        for item in _pieces(runs_dir, run, attempt, cursor, wanted):
            found, cursor = True, item.cursor
            yield item
        if found or not over:
            return


def is_over(run: Run, attempt: StageAttempt) -> bool:
    """Return whether the output of an attempt no longer grows."""
    return attempt.finished_at is not None or State(run.state).is_final


def _pieces(runs_dir: Path, run: Run, attempt: StageAttempt, cursor: Cursor, wanted: OutputFilter) -> Iterator[Item]:
    if wanted.stage not in (None, attempt.stage):
        return
    root = runs_dir / str(run.id)
    for log in attempt_logs(root, attempt.stage, attempt.attempt, ended=is_over(run, attempt)):
        if not wanted.wants(log.rank, log.stream):
            continue
        index = place_of(log)
        data = _piece(log, run.id or 0, cursor.offset(index), whole_lines=wanted.whole_lines)
        if data is not None:
            cursor = cursor.with_offset(index, data["next_offset"])
            yield Item(type="log", data=data, cursor=cursor)


def place_of(log: LogFile) -> int:
    """Return the index of a file among the offsets of a cursor."""
    return len(STREAMS) * log.rank + STREAMS.index(log.stream)


def _piece(log: LogFile, run_id: int, offset: int, *, whole_lines: bool) -> dict[str, Any] | None:
    try:
        behind = log.path.stat().st_size - offset
    except OSError:
        return None
    if behind <= 0:
        return None
    flood = behind > FLOOD_BYTES
    start = offset + behind - PIECE_BYTES if flood else offset
    piece = read_piece(log, start, PIECE_BYTES, whole_lines=whole_lines, from_line=flood)
    if piece.next_offset <= offset:
        return None
    place = {"stage": log.stage, "attempt": log.attempt, "rank": log.rank, "stream": log.stream}
    ended = log.ended and piece.next_offset >= piece.size
    data = {**place, "offset": piece.offset, "next_offset": piece.next_offset, "ended": ended, "text": piece.text}
    if piece.offset > offset:
        query = f"stage={log.stage}&attempt={log.attempt}&stream={log.stream}&offset={offset}"
        data["skipped"] = piece.offset - offset
        data["where"] = f"/api/v1/runs/{run_id}/logs/{log.rank}?{query}"
    return data
