"""Reading the rank events of a run: every event once, by its number within the run."""

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final

import orjson
from pydantic import ConfigDict, Field, SkipValidation, WithJsonSchema
from sqlalchemy import ColumnElement, Select, func, select
from sqlmodel import Session, col

from app.documents import Document
from app.runs.models import MalformedLine, RunEvent
from app.runs.telemetry.items import EventFilter

EVENTS_LIMIT: Final = 1000
EVERY_EVENT: Final = EventFilter()
BY_TYPE: Final = "ix_run_event_type"


class EventItem(Document):
    """One event line as the rank wrote it, with its position in the run; further members depend on its type."""

    model_config = ConfigDict(extra="allow")

    seq: int = Field(description="0, 1, 2 … within the rank's file.")
    t: float = Field(description="Unix seconds.")
    type: str
    id: int = Field(description="1, 2, 3 … within the run.")
    stage: str
    attempt: int
    rank: int


class EventList(Document):
    """Rank events in order."""

    # Lines are passed through unchanged: a model per line would cost more than reading them.
    items: SkipValidation[list[Annotated[dict[str, Any], WithJsonSchema(EventItem.model_json_schema())]]]
    next_after: int = Field(description="Value of `after` for the next request.")


class MalformedItem(Document):
    """A line that is not an event, or the torn tail of an ended attempt."""

    stage: str
    attempt: int
    rank: int
    offset: int = Field(description="Byte position of the line in its file.")
    text: str
    why: str


class MalformedList(Document):
    """Malformed lines, in order of stage, attempt, rank and position."""

    items: list[MalformedItem]


def events(
    session: Session, run_id: int, *, after: int = 0, wanted: EventFilter = EVERY_EVENT, limit: int = 100
) -> EventList:
    """Return events with a number above `after`, in order, at most `limit`."""
    items = events_after(session, run_id, after, wanted, min(limit, EVENTS_LIMIT))
    return EventList(items=items, next_after=items[-1]["id"] if items else after)


def events_after(session: Session, run_id: int, after: int, wanted: EventFilter, limit: int) -> list[dict[str, Any]]:
    """Return the events with a number above `after`, in order, at most `limit`."""
    query = _LINES.where(col(RunEvent.id) > after, *_of(run_id, wanted.stage, wanted.rank))
    if wanted.type is not None:
        query = _of_type(query, wanted.type)
    return [_item(*row) for row in session.execute(query.order_by(col(RunEvent.id)).limit(limit))]


Lines = Select[int, str, int, int, str]
"""id, stage, attempt, rank, line"""
# Plain columns: rows as objects take most of the time of a read.
_LINES: Final[Lines] = select(
    col(RunEvent.id), col(RunEvent.stage), col(RunEvent.attempt), col(RunEvent.rank), col(RunEvent.line)
)


def _of_type(query: Lines, event_type: str) -> Lines:
    # By default SQLite scans all events of the run by number, even if few have this type.
    query = query.with_hint(RunEvent, f"INDEXED BY {BY_TYPE}", "sqlite")
    return query.where(col(RunEvent.type) == event_type)


def _of(run_id: int, stage: str | None, rank: int | None) -> list[ColumnElement[bool]]:
    conditions = [col(RunEvent.run_id) == run_id]
    if stage is not None:
        conditions.append(col(RunEvent.stage) == stage)
    if rank is not None:
        conditions.append(col(RunEvent.rank) == rank)
    return conditions


def _item(event_id: int, stage: str, attempt: int, rank: int, line: str) -> dict[str, Any]:
    """Return one event: the line as the rank wrote it, plus its position in the run."""
    event: dict[str, Any] = orjson.loads(line)
    return {**event, "id": event_id, "stage": stage, "attempt": attempt, "rank": rank}


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
    query = _of_type(_LINES, event_type).where(col(RunEvent.id) <= last, *_of(run_id, stage, rank))
    rows = session.execute(query.order_by(col(RunEvent.id).desc()).limit(limit)).all()
    return [_item(*row) for row in reversed(rows)]


def count_events(
    session: Session,
    run_id: int,
    types: Collection[str],
    *,
    last: int,
    stage: str | None = None,
    rank: int | None = None,
) -> int:
    """Return the number of events of these types up to number `last`."""
    query = select(func.count()).where(col(RunEvent.type).in_(types), col(RunEvent.id) <= last)
    return session.scalar(query.where(*_of(run_id, stage, rank))) or 0


def every_event(session: Session, run_id: int) -> Iterator[dict[str, Any]]:
    """Yield all events of a run in order, a page at a time."""
    after = 0
    while True:
        page = events_after(session, run_id, after, EventFilter(), EVENTS_LIMIT)
        if not page:
            return
        yield from page
        after = page[-1]["id"]


def malformed_lines(session: Session, run_id: int, limit: int = 100) -> MalformedList:
    """Return malformed lines, which are not events."""
    query = select(MalformedLine).where(col(MalformedLine.run_id) == run_id)
    order = (MalformedLine.stage, MalformedLine.attempt, MalformedLine.rank, MalformedLine.offset)
    rows = session.scalars(query.order_by(*(col(column) for column in order)).limit(limit))
    return MalformedList(items=[MalformedItem(**row.model_dump()) for row in rows])
