"""Reading the rank events of a run: every event once, by its number within the run."""

from collections.abc import Collection, Iterator
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from app.runs.models import MalformedLine, RunEvent
from app.runs.telemetry.items import EventFilter

EVENTS_LIMIT: Final = 1000
EVERY_EVENT: Final = EventFilter()
BY_TYPE: Final = "ix_run_event_type"


def events(
    session: Session, run_id: int, *, after: int = 0, wanted: EventFilter = EVERY_EVENT, limit: int = 100
) -> dict[str, Any]:
    """Return `{items, next_after}`: events with a number above `after`, in order, at most `limit`."""
    items = events_after(session, run_id, after, wanted, min(limit, EVENTS_LIMIT))
    return {"items": items, "next_after": items[-1]["id"] if items else after}


def events_after(session: Session, run_id: int, after: int, wanted: EventFilter, limit: int) -> list[dict[str, Any]]:
    """Return the events with a number above `after`, in order, at most `limit`."""
    query = select(RunEvent).where(RunEvent.id > after, *_of(run_id, wanted.stage, wanted.rank))
    if wanted.type is not None:
        query = _by_type(query.where(RunEvent.type == wanted.type))
    return [item(row) for row in session.exec(query.order_by(col(RunEvent.id)).limit(limit))]


def _by_type(query: SelectOfScalar[RunEvent]) -> SelectOfScalar[RunEvent]:
    # Left to itself SQLite walks all events of the run by number, however few have this type.
    return query.with_hint(RunEvent, f"INDEXED BY {BY_TYPE}", "sqlite")


def _of(run_id: int, stage: str | None, rank: int | None) -> list[ColumnElement[bool]]:
    conditions = [col(RunEvent.run_id) == run_id]
    if stage is not None:
        conditions.append(col(RunEvent.stage) == stage)
    if rank is not None:
        conditions.append(col(RunEvent.rank) == rank)
    return conditions


def item(row: RunEvent) -> dict[str, Any]:
    """Return one event: the line as the rank wrote it, plus its place in the run."""
    line: dict[str, Any] = orjson.loads(row.line)
    return {**line, "id": row.id, "stage": row.stage, "attempt": row.attempt, "rank": row.rank}


def newest_events(
    session: Session,
    run_id: int,
    event_type: str,
    *,
    last: int,
    limit: int,
    stage: str | None = None,
    rank: int | None = None,
) -> list[dict[str, Any]]:
    """Return the last events of one type up to number `last`, at most `limit`, in order."""
    query = select(RunEvent).where(RunEvent.type == event_type, RunEvent.id <= last, *_of(run_id, stage, rank))
    rows = session.exec(_by_type(query).order_by(col(RunEvent.id).desc()).limit(limit)).all()
    return [item(row) for row in reversed(rows)]


def count_events(
    session: Session,
    run_id: int,
    types: Collection[str],
    *,
    last: int,
    stage: str | None = None,
    rank: int | None = None,
) -> int:
    """Return how many events of these types there are up to number `last`."""
    query = select(func.count()).where(col(RunEvent.type).in_(types), RunEvent.id <= last, *_of(run_id, stage, rank))
    return session.exec(query).one()


def every_event(session: Session, run_id: int, event_type: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield all events of a run in order, a page at a time."""
    after = 0
    while True:
        page = events_after(session, run_id, after, EventFilter(type=event_type), EVENTS_LIMIT)
        if not page:
            return
        yield from page
        after = page[-1]["id"]
        session.expunge_all()


def malformed_lines(session: Session, run_id: int, limit: int = 100) -> list[dict[str, Any]]:
    """Return lines that were kept aside because they are no events, in order of stage, attempt, rank and place."""
    query = select(MalformedLine).where(MalformedLine.run_id == run_id)
    order = (MalformedLine.stage, MalformedLine.attempt, MalformedLine.rank, MalformedLine.offset)
    rows = session.exec(query.order_by(*(col(column) for column in order)).limit(limit))
    return [row.model_dump(exclude={"run_id"}) for row in rows]
