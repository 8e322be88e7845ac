"""Everything that happens to a run as one sequence of items: moves of its state, rank events, output, and its end."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from sqlmodel import Session, col, select

from app.runs import serialise
from app.runs.models import RankRow, Run, RunEvent, RunHistory, StageAttempt
from app.runs.states import State
from app.runs.store import get_run, history_of, ranks_of, stages_of
from app.runs.telemetry import logs
from app.runs.telemetry.cursor import Cursor
from app.runs.telemetry.events import item as event_document

EVENTS_PER_PULL: Final = 500
PIECE_BYTES: Final = 1 << 16
FLOOD_BYTES: Final = 1 << 20
"""A reader further behind in a log than this is told how much was skipped, and gets the newest piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that happened."""

    type: Literal["event", "log", "state", "end"]
    data: dict[str, Any]
    cursor: Cursor
    """Where a reader stands after this item."""


def pull(session: Session, runs_dir: Path, run_id: int, cursor: Cursor) -> list[Item]:
    """Return the next items after `cursor`, none when there is nothing new.

    Moves and events come in the order of their times; `end` comes once, after everything else of a final run.
    Raises NotFound when the run is gone.
    """
    run = get_run(session, run_id)
    items = list(_moves_and_events(session, run_id, cursor))
    more = sum(item.type == "event" for item in items) == EVENTS_PER_PULL
    cursor = items[-1].cursor if items else cursor
    output = list(_logs(session, runs_dir, run, cursor))
    items += output
    if more or output or cursor.ended or not State(run.state).is_final:
        return items
    data = {"state": run.state, "reason": run.reason, "verdict": run.verdict}
    return [*items, Item(type="end", data=data, cursor=replace(cursor, ended=True))]


def _moves_and_events(session: Session, run_id: int, cursor: Cursor) -> Iterator[Item]:
    query = select(RunEvent).where(RunEvent.run_id == run_id, RunEvent.id > cursor.event)
    rows = session.exec(query.order_by(col(RunEvent.id)).limit(EVENTS_PER_PULL)).all()
    moves = history_of(session, run_id, cursor.move)
    for row in rows:
        document = event_document(row)
        while moves and moves[0].at.timestamp() <= document["t"]:
            cursor = replace(cursor, move=moves[0].seq)
            yield _state(moves.pop(0), cursor)
        cursor = replace(cursor, event=row.id)
        yield Item(type="event", data=document, cursor=cursor)
    if len(rows) < EVENTS_PER_PULL:
        for move in moves:
            cursor = replace(cursor, move=move.seq)
            yield _state(move, cursor)


def _state(move: RunHistory, cursor: Cursor) -> Item:
    return Item(type="state", data={"state": move.target, **serialise.move(move)}, cursor=cursor)


def _logs(session: Session, runs_dir: Path, run: Run, cursor: Cursor) -> Iterator[Item]:
    """Yield at most one piece per log of the attempt that is being read, going on to the next when it is read up."""
    attempts = [row for row in stages_of(session, run.id or 0) if row.attempt > 0]
    for attempt in attempts:
        if (attempt.position, attempt.attempt) < (cursor.position, cursor.attempt):
            continue
        if (attempt.position, attempt.attempt) != (cursor.position, cursor.attempt):
            cursor = replace(cursor, position=attempt.position, attempt=attempt.attempt, offsets=())
        found = False
        for item in _pieces(session, runs_dir, run, attempt, cursor):
            found, cursor = True, item.cursor
            yield item
        if found or not _over(run, attempt):
            return


def _over(run: Run, attempt: StageAttempt) -> bool:
    return attempt.finished_at is not None or State(run.state).is_final


def _pieces(session: Session, runs_dir: Path, run: Run, attempt: StageAttempt, cursor: Cursor) -> Iterator[Item]:
    for rank in ranks_of(session, attempt):
        for number, stream in enumerate(logs.STREAMS):
            index = 2 * rank.rank + number
            log = replace(logs.log_file(runs_dir, rank, attempt, stream), ended=_over(run, attempt))
            data = _piece(log, rank, cursor.offset(index))
            if data is not None:
                cursor = cursor.with_offset(index, data["next_offset"])
                yield Item(type="log", data=data, cursor=cursor)


def _piece(log: logs.LogFile, rank: RankRow, offset: int) -> dict[str, Any] | None:
    try:
        behind = log.path.stat().st_size - offset
    except OSError:
        return None
    if behind <= 0:
        return None
    start = offset if behind <= FLOOD_BYTES else offset + behind - PIECE_BYTES
    piece = logs.read_piece(log, start, PIECE_BYTES)
    if piece.next_offset <= offset:
        return None
    place = {"stage": log.stage, "attempt": log.attempt, "rank": log.rank, "stream": log.stream}
    data = {**place, "offset": piece.offset, "next_offset": piece.next_offset, "text": piece.text}
    if piece.offset > offset:
        query = f"stage={log.stage}&attempt={log.attempt}&stream={log.stream}&offset={offset}"
        data["skipped"] = piece.offset - offset
        data["where"] = f"/api/v1/runs/{rank.run_id}/logs/{log.rank}?{query}"
    return data
