"""Reading the audit log: who launched, cancelled, deleted or changed what, newest first."""

from pydantic import Field
from sqlmodel import Session, col, select

from app.clock import rfc3339
from app.documents import Document
from app.runs.models import AuditEntry


class AuditEntryDocument(Document):
    """Who did what."""

    id: int
    at: str
    actor: str
    action: str
    run_id: int | None
    detail: str


class AuditList(Document):
    """Entries of the audit log, newest first."""

    items: list[AuditEntryDocument]
    next_before: int | None = Field(description="Value of `before` for the next page; null on the last page.")


def audit_log(
    session: Session,
    *,
    before: int | None = None,
    run_id: int | None = None,
    actor: str = "",
    action: str = "",
    limit: int = 100,
) -> AuditList:
    """Return one page of entries; request older ones with `before` set to its `next_before`."""
    query = select(AuditEntry)
    if before is not None:
        query = query.where(col(AuditEntry.id) < before)
    if run_id is not None:
        query = query.where(AuditEntry.run_id == run_id)
    if actor:
        query = query.where(AuditEntry.actor == actor)
    if action:
        query = query.where(AuditEntry.action == action)
    rows = list(session.exec(query.order_by(col(AuditEntry.id).desc()).limit(limit + 1)))
    more, rows = len(rows) > limit, rows[:limit]
    items = [AuditEntryDocument(**{**row.model_dump(), "at": rfc3339(row.at)}) for row in rows]
    return AuditList(items=items, next_before=rows[-1].id if more else None)
