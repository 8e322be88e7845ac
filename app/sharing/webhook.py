"""Notifies a receiver of every ended run: signed, timestamped, retried, with a record of every attempt.

    POST <DDP_AUDIT_WEBHOOK_URL>
    X-DDP-Audit-Delivery: 17                    the same number for every attempt: receivers drop repeats by it
    X-DDP-Audit-Timestamp: 1760000000           unix seconds of this attempt
    X-DDP-Audit-Signature: sha256=<hex>         HMAC-SHA256 of "<timestamp>.<body>" under DDP_AUDIT_WEBHOOK_SECRET

A message is sent at least once: a sender that dies between the receiver's answer and its own record sends it again.
"""

import hashlib
import hmac
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import httpx
import orjson
import structlog
from sqlalchemy import Engine, select, update
from sqlmodel import Session, col

from app.clock import now
from app.db import HOLD, database_time, read_session, write_session
from app.runs.derived import Delivery, DeliveryAttempt
from app.settings import Settings

TIMEOUT_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 60.0
"""During an attempt no other sender makes one; longer than any attempt may take."""
WAITS_SECONDS: Final = (10, 60, 300, 1800, 7200, 21_600, 43_200)
"""Between attempts: eight of them within a day."""
AT_ONCE: Final = 20

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One delivery to be sent."""

    delivery_id: int
    number: int
    """Attempt, from 1."""
    run: dict[str, Any]

    def body(self) -> bytes:
        """Return the JSON document; the same bytes for every attempt."""
        return orjson.dumps({"event": "run.ended", "delivery": self.delivery_id, "run": self.run})


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the value of the signature header."""
    digest = hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"


def deliver_due(engine: Engine, settings: Settings) -> int:
    """Make every due attempt and return how many were made; without an address, mark deliveries as skipped."""
    if settings.webhook_url is None:
        _skip_pending(engine)
        return 0
    messages = _claim(engine)
    if not messages:
        return 0
    with httpx.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as sender:
        for message in messages:
            _attempt(engine, settings, sender, message)
    return len(messages)


def _skip_pending(engine: Engine) -> None:
    # Otherwise an address that is set months later would be notified of every past run.
    pending = select(col(Delivery.id)).where(col(Delivery.status) == "pending").limit(1)
    with read_session(engine) as session:
        if session.scalar(pending) is None:
            return
    with write_session(engine) as session:
        session.execute(update(Delivery).where(col(Delivery.status) == "pending").values(status="skipped"))


def _claim(engine: Engine) -> list[Message]:
    pending = select(Delivery).where(col(Delivery.status) == "pending")
    with read_session(engine) as session:
        if session.scalar(pending.where(col(Delivery.next_at) <= database_time(session)).limit(1)) is None:
            return []
    with write_session(engine) as session:
        moment = database_time(session)
        due = pending.where(col(Delivery.next_at) <= moment).order_by(col(Delivery.next_at), col(Delivery.id))
        rows = list(session.scalars(due.limit(AT_ONCE).with_for_update(skip_locked=True)))
        for place, row in enumerate(rows, start=1):
            row.next_at = moment + timedelta(seconds=place * LEASE_SECONDS)
            session.add(row)
        return [Message(delivery_id=row.id or 0, number=row.attempts + 1, run=row.run) for row in rows]


def _attempt(engine: Engine, settings: Settings, client: httpx.Client, message: Message) -> None:
    began = now()
    clock = time.perf_counter()
    status, error = _send(settings, client, message)
    seconds = round(time.perf_counter() - clock, 3)
    with write_session(engine) as session:
        row = session.get(Delivery, message.delivery_id, with_for_update=HOLD)
        if row is None or row.attempts >= message.number:
            return
        attempt = DeliveryAttempt(
            delivery_id=message.delivery_id,
            number=message.number,
            at=began,
            seconds=seconds,
            status=status,
            error=error,
        )
        session.add(attempt)
        _settle(session, row, error)
    level = log.warning if error else log.info
    level(
        "webhook",
        action="webhook-attempt",
        delivery=message.delivery_id,
        run_id=message.run["id"],
        attempt=message.number,
        status=status,
        error=error,
    )


def _send(settings: Settings, client: httpx.Client, message: Message) -> tuple[int | None, str]:
    """Send once and return (HTTP status, error text or nothing); neither ever contains the address."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        raise RuntimeError("a message needs an address and a secret; the settings require both")
    body, timestamp = message.body(), int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "ddp-audit",
        "X-DDP-Audit-Delivery": str(message.delivery_id),
        "X-DDP-Audit-Timestamp": str(timestamp),
        "X-DDP-Audit-Signature": signature(settings.webhook_secret.get_secret_value(), timestamp, body),
    }
    try:
        with client.stream(
            "POST", settings.webhook_url.get_secret_value(), content=body, headers=headers, timeout=TIMEOUT_SECONDS
        ) as answer:
            status = answer.status_code  # the body of the answer is never read: it may be endless
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return None, f"no answer: {type(error).__name__}"
    return status, "" if 200 <= status < 300 else f"the receiver answered {status}; 200 to 299 means received"


def _settle(session: Session, row: Delivery, error: str) -> None:
    row.attempts += 1
    if not error:
        row.status, row.delivered_at = "delivered", now()
    elif row.attempts > len(WAITS_SECONDS):
        row.status = "failed"
    else:
        row.next_at = database_time(session) + timedelta(seconds=WAITS_SECONDS[row.attempts - 1])
    session.add(row)
