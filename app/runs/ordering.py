"""The orders a list of runs comes in, each with an index to walk, and the cursors that go on where a page ended."""

import base64
import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, tuple_
from sqlalchemy.orm import Mapped
from sqlmodel import col

from app.runs.errors import refused
from app.runs.models import Run

LARGEST_ID: Final = 2**63 - 1


class Order(StrEnum):
    """By what runs are sorted; equal ones by their number, in the same direction."""

    NEWEST = "newest"
    OLDEST = "oldest"
    PINNED = "pinned"
    """Pinned ones first; within both parts newest first."""
    FINISHED = "finished"
    """Last to end first; runs that have not ended are not among them."""
    LONGEST = "longest"
    """By the time from start to end; runs that have not both are not among them."""
    SHORTEST = "shortest"


MARKS: Final = {
    Order.NEWEST: "r",
    Order.OLDEST: "o",
    Order.PINNED: "p",
    Order.FINISHED: "f",
    Order.LONGEST: "l",
    Order.SHORTEST: "s",
}
"""First letter of a cursor, so that one order's cursor is not taken for another's."""
ASCENDING: Final = frozenset({Order.OLDEST, Order.SHORTEST})
BY_NUMBER: Final = frozenset({Order.NEWEST, Order.OLDEST})
"""Orders by the number alone."""


def _column(order: Order) -> Mapped[Any]:
    """Return what an order goes by before the number."""
    match order:
        case Order.PINNED:
            return col(Run.pinned)
        case Order.FINISHED:
            return col(Run.finished_at)
        case Order.LONGEST | Order.SHORTEST:
            return col(Run.took_seconds)
    return col(Run.id)


def sorted_by(order: Order) -> list[ColumnElement[Any]]:
    """Return what a query is ordered by."""
    columns: list[Mapped[Any]] = [col(Run.id)] if order in BY_NUMBER else [_column(order), col(Run.id)]
    return [column.asc() if order in ASCENDING else column.desc() for column in columns]


def restriction(order: Order) -> list[ColumnElement[bool]]:
    """Return which runs an order is for."""
    return [] if order in BY_NUMBER or order is Order.PINNED else [_column(order).is_not(None)]


def write_cursor(order: Order, run: Run) -> str:
    """Return the cursor of the page after `run`."""
    text = f"{MARKS[order]}{run.id}"
    if order not in BY_NUMBER:
        text += f"|{_value(order, run)!r}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _value(order: Order, run: Run) -> float:
    match order:
        case Order.PINNED:
            return float(run.pinned)
        case Order.FINISHED:
            return run.finished_at.timestamp() if run.finished_at else 0.0
    return run.took_seconds or 0.0


def beyond(order: Order, cursor: str) -> ColumnElement[bool]:
    """Return the condition for what comes after a cursor. Raises Refused for one that is not of this order."""
    number, value = _read(order, cursor)
    if order in BY_NUMBER:
        return col(Run.id) > number if order in ASCENDING else col(Run.id) < number
    here, there = tuple_(_column(order), col(Run.id)), tuple_(value, number)
    return here > there if order in ASCENDING else here < there


def _read(order: Order, cursor: str) -> tuple[int, Any]:
    value: Any = None
    try:
        plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        name, _, text = plain[1:].partition("|")
        number = int(name) if plain[:1] == MARKS[order] else -1
        if order not in BY_NUMBER:
            value = _stored(order, float(text))
    except (ValueError, OverflowError, OSError):
        number = -1
    if not 0 < number <= LARGEST_ID:
        raise refused(
            "cursor", f"{cursor[:80]!r} is no cursor of the order {order}; take next_cursor of the page before"
        )
    return number, value


def _stored(order: Order, value: float) -> Any:
    """Return a cursor's number as the column has it. Raises ValueError or OverflowError for one it cannot have."""
    if not math.isfinite(value):
        raise ValueError("no number")
    match order:
        case Order.PINNED:
            return bool(value)
        case Order.FINISHED:
            return datetime.fromtimestamp(value, UTC)
    return value
