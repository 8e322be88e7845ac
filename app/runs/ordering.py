"""The orders a list of runs comes in, each with an index to walk, and the cursors that go on where a page ended."""

import base64
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, tuple_
from sqlmodel import col

from app.runs.errors import refused
from app.runs.models import Run

LARGEST_ID: Final = 2**63 - 1


class Order(StrEnum):
    """By what runs are sorted; equal ones by their number."""

    NEWEST = "newest"
    OLDEST = "oldest"
    FINISHED = "finished"
    """Last to end first; runs that have not ended are not among them."""


MARKS: Final = {Order.NEWEST: "r", Order.OLDEST: "o", Order.FINISHED: "f"}
"""First letter of a cursor, so that one order's cursor is not taken for another's."""


def sorted_by(order: Order) -> list[ColumnElement[Any]]:
    """Return what a query is ordered by."""
    match order:
        case Order.OLDEST:
            return [col(Run.id).asc()]
        case Order.FINISHED:
            return [col(Run.finished_at).desc(), col(Run.id).desc()]
    return [col(Run.id).desc()]


def restriction(order: Order) -> list[ColumnElement[bool]]:
    """Return which runs an order is for."""
    return [col(Run.finished_at).is_not(None)] if order is Order.FINISHED else []


def write_cursor(order: Order, run: Run) -> str:
    """Return the cursor of the page after `run`."""
    text = f"{MARKS[order]}{run.id}"
    if order is Order.FINISHED and run.finished_at is not None:
        text += f"|{run.finished_at.timestamp():.6f}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def beyond(order: Order, cursor: str) -> ColumnElement[bool]:
    """Return the condition for what comes after a cursor. Raises Refused for one that is not of this order."""
    number, moment = _read(order, cursor)
    match order:
        case Order.OLDEST:
            return col(Run.id) > number
        case Order.FINISHED:
            return tuple_(col(Run.finished_at), col(Run.id)) < tuple_(moment, number)
    return col(Run.id) < number


def _read(order: Order, cursor: str) -> tuple[int, datetime]:
    moment = datetime.fromtimestamp(0, UTC)
    try:
        plain = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        name, _, seconds = plain[1:].partition("|")
        number = int(name) if plain[:1] == MARKS[order] else -1
        if order is Order.FINISHED:
            moment = datetime.fromtimestamp(float(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        number = -1
    if not 0 < number <= LARGEST_ID:
        raise refused(
            "cursor", f"{cursor[:80]!r} is no cursor of the order {order}; take next_cursor of the page before"
        )
    return number, moment
