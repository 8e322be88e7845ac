"""The log of webhook deliveries, and repeating a delivery."""

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from pydantic import Field
from sqlalchemy import Engine, func, select
from sqlmodel import Session, col

from app.clock import now, rfc3339
from app.db import HOLD, database_time, write_session
from app.documents import Document
from app.runs.derived import Delivery, DeliveryAttempt
from app.runs.errors import NotFound
from app.runs.models import AuditEntry

MOST: Final = 200
Status = Literal["pending", "delivered", "failed", "skipped"]
STATUSES: Final[tuple[str, ...]] = get_args(Status)
"""Status values of a delivery; see `app.runs.derived.Delivery`."""


class AttemptDocument(Document):
    """One attempt at a delivery."""

    number: int
    at: str
    seconds: float
    status: int | None = Field(description="HTTP status; null if there was no answer.")
    error: str


class DeliveryDocument(Document):
    """The end of one run to be reported to the webhook."""

    id: int
    run_id: int
    run: dict[str, Any] = Field(description="The run as it ended.")
    status: Status
    next_at: str | None = Field(description="Earliest time of the next attempt; null if there is none.")
    delivered_at: str | None
    attempts: list[AttemptDocument]


class DeliveryList(Document):
    """Webhook deliveries, newest first."""

    items: list[DeliveryDocument]
    next_before: int | None = Field(description="Value of `before` for the next page; null on the last page.")


def delivery_log(
    session: Session, *, run_id: int | None = None, status: str = "", before: int | None = None, limit: int = 50
) -> DeliveryList:
    """Return one page of deliveries; request older ones with `before` set to its `next_before`."""
    limit = max(1, min(limit, MOST))
    query = select(Delivery).order_by(col(Delivery.id).desc()).limit(limit + 1)
    if run_id is not None:
        query = query.where(col(Delivery.run_id) == run_id)
    if status:
        query = query.where(col(Delivery.status) == status)
    if before is not None:
        query = query.where(col(Delivery.id) < before)
    rows = list(session.scalars(query))
    more, rows = len(rows) > limit, rows[:limit]
    attempts = _attempts(session, [row.id or 0 for row in rows])
    items = [_delivery(row, attempts.get(row.id or 0, [])) for row in rows]
    return DeliveryList(items=items, next_before=rows[-1].id if more else None)


def _attempts(session: Session, ids: Sequence[int]) -> dict[int, list[AttemptDocument]]:
    attempts: dict[int, list[AttemptDocument]] = {}
    made = select(DeliveryAttempt).where(col(DeliveryAttempt.delivery_id).in_(ids))
    for attempt in session.scalars(made.order_by(col(DeliveryAttempt.number))):
        document = AttemptDocument(**{**attempt.model_dump(), "at": rfc3339(attempt.at)})
        attempts.setdefault(attempt.delivery_id, []).append(document)
    return attempts


def _delivery(row: Delivery, attempts: list[AttemptDocument]) -> DeliveryDocument:
    return DeliveryDocument(
        id=row.id,
        run_id=row.run_id,
        run=row.run,
        status=row.status,
        next_at=rfc3339(row.next_at) if row.status == "pending" else None,
        delivered_at=rfc3339(row.delivered_at),
        attempts=attempts,
    )


def count_deliveries(session: Session) -> dict[str, int]:
    """Return the number of deliveries with each of `STATUSES`."""
    rows = session.execute(select(col(Delivery.status), func.count()).group_by(col(Delivery.status)))
    return dict.fromkeys(STATUSES, 0) | {str(status): int(count) for status, count in rows}


def redeliver(engine: Engine, delivery_id: int, *, actor: str) -> DeliveryDocument:
    """Make a delivery due now, whatever its status, and return it. Raises NotFound."""
    with write_session(engine) as session:
        row = session.get(Delivery, delivery_id, with_for_update=HOLD) if 0 < delivery_id < 2**63 else None
        if row is None:
            raise NotFound("unknown_delivery", f"there is no delivery {delivery_id}")
        row.status, row.next_at, row.delivered_at = "pending", database_time(session), None
        session.add(row)
        entry = AuditEntry(at=now(), actor=actor, action="redeliver", run_id=row.run_id, detail=f"delivery {row.id}")
        session.add(entry)
        session.flush()
        return _delivery(row, _attempts(session, [delivery_id]).get(delivery_id, []))
