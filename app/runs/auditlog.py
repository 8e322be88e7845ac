"""The audit log read: who launched, cancelled, deleted or changed what, newest first."""

from typing import Any

from sqlmodel import Session, col, select

from app.clock import rfc3339
from app.runs.models import AuditEntry


def audit_log(
    session: Session,
    *,
    before: int | None = None,
    run_id: int | None = None,
    actor: str = "",
    action: str = "",
    limit: int = 100,
) -> dict[str, Any]:
    """Return `{items, next_before}`; ask again with `before=next_before` for older entries, None on the last page."""
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
    return {"items": [_entry(row) for row in rows], "next_before": rows[-1].id if more else None}


def _entry(row: AuditEntry) -> dict[str, Any]:
    return {
        "id": row.id,
        "at": rfc3339(row.at),
        "actor": row.actor,
        "action": row.action,
        "run_id": row.run_id,
        "detail": row.detail,
    }
