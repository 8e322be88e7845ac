"""Rows derived from a run's end: webhook deliveries with their attempts, judged checks, and bytes on disk."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, Index
from sqlmodel import Field, SQLModel

from app.db import UtcDateTime
from trainer.contract.result import Relation


class Delivery(SQLModel, table=True):
    """The end of one run to be reported to the webhook; written in the transaction of the final state change."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index("ix_webhook_delivery_due", "status", "next_at"),
        Index("ix_webhook_delivery_run", "run_id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int
    """A plain number: deleting the run must not delete the message."""
    run: dict[str, Any] = Field(sa_column=Column(JSON(), nullable=False))
    """The run as it ended; see `app.runs.outbox`."""
    status: str = "pending"
    """pending, delivered, failed (no attempts left), skipped (no address was set)."""
    attempts: int = 0
    next_at: datetime = Field(sa_type=UtcDateTime)
    """Earliest time of the next attempt; postponed while one is active."""
    delivered_at: datetime | None = Field(default=None, sa_type=UtcDateTime)


class DeliveryAttempt(SQLModel, table=True):
    """One attempt at a delivery."""

    __tablename__ = "webhook_attempt"

    delivery_id: int = Field(foreign_key="webhook_delivery.id", ondelete="CASCADE", primary_key=True)
    number: int = Field(primary_key=True)
    """1, 2, 3 … within the delivery."""
    at: datetime = Field(sa_type=UtcDateTime)
    seconds: float
    status: int | None = None
    """HTTP status; None if there was no answer."""
    error: str = ""


class RunCheck(SQLModel, table=True):
    """One judged check of a succeeded run, so that many runs compare without opening their files."""

    __tablename__ = "run_check"
    __table_args__ = (Index("ix_run_check_trend", "kind", "name", "run_id"),)

    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)
    name: str = Field(primary_key=True)
    kind: str
    title: str
    passed: bool | None = None
    measured: Any = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    """Number, or the name of a non-finite value: a numeric database column cannot store NaN."""
    limit: Any = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    relation: str = Relation.AT_MOST
    """How `measured` is compared with `limit`; older rows without it are read as at_most."""
    strict: bool = False
    """Whether the limit itself does not pass."""
    unit: str = ""


class RunFacts(SQLModel, table=True):
    """Measurements of a run's folder, stored because taking them reads many files."""

    __tablename__ = "run_facts"

    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)
    bytes: int | None = None
    """Of all files in the run's folder; None: never measured."""
    files: int | None = None
    measured_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    checks_read: bool = False
    """Whether `run_check` contains the checks of the run's result."""
