"""Rows that follow from a run's end: notices for the webhook with their attempts, judged checks, and bytes on disk."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Column, Index
from sqlmodel import Field, SQLModel

from app.db import UtcDateTime
from trainer.contract.result import Relation


class Delivery(SQLModel, table=True):
    """One end of a run to be told to the webhook; written in the transaction of the final move."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index("ix_webhook_delivery_due", "status", "next_at"),
        Index("ix_webhook_delivery_run", "run_id"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, primary_key=True)
    run_id: int
    """A plain number: deleting the run must not take the message with it."""
    run: dict[str, Any] = Field(sa_column=Column(JSON(), nullable=False))
    """The run as it ended; see `app.runs.outbox`."""
    status: str = "pending"
    """pending, delivered, failed (no attempt is left), skipped (no address was set)."""
    attempts: int = 0
    next_at: datetime = Field(sa_type=UtcDateTime)
    """Earliest moment of the next attempt; pushed ahead while one is under way."""
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
    """HTTP status; None when there was no answer."""
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
    """Number, or the name of a non-finite one: a database column of numbers has no NaN."""
    limit: Any = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))
    relation: str = Relation.AT_MOST
    """How `measured` is held against `limit`; rows from before this was recorded are read as at_most."""
    strict: bool = False
    """The limit itself does not suffice."""
    unit: str = ""


class RunFacts(SQLModel, table=True):
    """What was found out about a run's folder and kept, because finding out reads many files."""

    __tablename__ = "run_facts"

    run_id: int = Field(foreign_key="run.id", ondelete="CASCADE", primary_key=True)
    bytes: int | None = None
    """Of all files in the run's folder; None: never measured."""
    files: int | None = None
    measured_at: datetime | None = Field(default=None, sa_type=UtcDateTime)
    checks_read: bool = False
    """Whether `run_check` has what the run's result says."""
