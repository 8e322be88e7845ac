"""Sort orders of a list of runs, each backed by an index, and the cursors that continue after a page."""

import base64
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import orjson
from sqlalchemy import ColumnElement, literal, tuple_
from sqlalchemy.orm import Mapped
from sqlmodel import col

from app.runs.errors import Refused, refused
from app.runs.models import Run

LARGEST_ID: Final = 2**63 - 1
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


class Order(StrEnum):
    """Sort order of runs; ties are sorted by number, in the same direction."""

    NEWEST = "newest"
    OLDEST = "oldest"
    PINNED = "pinned"
    """Pinned runs first; newest first within both parts."""
    FINISHED = "finished"
    """Last finished first; then runs that have not ended."""
    LONGEST = "longest"
    """By the time from start to end; then runs that lack either."""
    SHORTEST = "shortest"


ASCENDING: Final = frozenset({Order.OLDEST, Order.SHORTEST})
BY_NUMBER: Final = frozenset({Order.NEWEST, Order.OLDEST})
"""Orders by the number only."""
WITH_REST: Final = frozenset({Order.FINISHED, Order.LONGEST, Order.SHORTEST})
"""Orders by values that some runs do not have: those come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The end of a page: its last run, and that run's sort value."""

    number: int
    value: Any = None
    """Value of the sort column; None if the run has no value, and for orders by the number."""


def _column(order: Order) -> Mapped[Any]:
    """Return the sort columns of an order before the number."""
    match order:
        case Order.PINNED:
            return col(Run.pinned)
        case Order.FINISHED:
            return col(Run.finished_at)
        case Order.LONGEST | Order.SHORTEST:
            return col(Run.took_seconds)
    return col(Run.id)


def sorted_by(order: Order) -> list[ColumnElement[Any]]:
    """Return the ORDER BY columns of a query."""
    columns: list[Mapped[Any]] = [col(Run.id)] if order in BY_NUMBER else [_column(order), col(Run.id)]
    return [column.asc() if order in ASCENDING else column.desc() for column in columns]


def parts(order: Order, place: Place | None = None) -> list[list[ColumnElement[bool]]]:
    """Return the conditions for the runs after a place (None: for all runs), one per part of the order.

    There are two parts if some runs have no value: in a single query, no database would use an index for both.
    """
    if order not in WITH_REST:
        return [[] if place is None else [_beyond(order, place)]]
    there, missing = _column(order).is_not(None), _column(order).is_(None)
    if place is None:
        return [[there], [missing]]
    if place.value is None:
        return [[missing, _past(order, col(Run.id), place.number)]]
    return [[there, _beyond(order, place)], [missing]]


def _beyond(order: Order, place: Place) -> ColumnElement[bool]:
    if order in BY_NUMBER:
        return _past(order, col(Run.id), place.number)
    # With the columns' types: a database server does not compare a number with a text, or a time without its zone.
    columns: list[Any] = [_column(order), col(Run.id)]
    values = (literal(value, column.type) for value, column in zip((place.value, place.number), columns, strict=True))
    return _past(order, tuple_(*columns), tuple_(*values))


def _past(order: Order, here: Any, there: Any) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = here > there if order in ASCENDING else here < there
    return condition


def write_cursor(order: Order, owner: str, run: Run) -> str:
    """Return the cursor of the page after `run` in the list `owner` (see `read_cursor`)."""
    fields = [order.value, owner, run.id, _value(order, run)]
    return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")


def _value(order: Order, run: Run) -> float | None:
    match order:
        case Order.PINNED:
            return int(run.pinned)
        case Order.FINISHED:
            return None if run.finished_at is None else (run.finished_at - EPOCH) // MICROSECOND
        case Order.LONGEST | Order.SHORTEST:
            return run.took_seconds
    return None


def read_cursor(order: Order, owner: str, cursor: str) -> Place:
    """Return the place of a cursor; `owner` is the digest of the list's filters.

    Raises Refused for a cursor of another order or of other filters, which has no meaning in this list.
    """
    try:
        given, of, number, value = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        found = _stored(Order(given), value)
        sound = type(number) is int and 0 < number <= LARGEST_ID
    except (ValueError, TypeError, OverflowError):
        sound = False
    if not sound:
        raise _foreign("is not a cursor of this service")
    if given != order:
        raise _foreign(f"belongs to a list sorted by {given}, not by {order}")
    if of != owner:
        raise _foreign("belongs to a list with other filters")
    return Place(number=number, value=found)


def _foreign(why: str) -> Refused:
    return refused("cursor", f"it {why}; use next_cursor of the previous page, or start again without a cursor")


def _stored(order: Order, value: Any) -> Any:
    """Return a cursor's number in the type of the column.

    Raises ValueError, TypeError or OverflowError if it is invalid.
    """
    if order in BY_NUMBER or (value is None and order in WITH_REST):
        return None
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("not a number")
    match order:
        case Order.PINNED:
            return bool(value)
        case Order.FINISHED:
            return EPOCH + value * MICROSECOND
    return value
