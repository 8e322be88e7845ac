"""The audit log, for the operator alone."""

from typing import Annotated

from fastapi import APIRouter, Query

from app.runs.auditlog import AuditList, audit_log
from app.runs.ordering import LARGEST_ID
from app.web.api.answers import answers
from app.web.api.replies import OperatorOnly, ReadSession

router = APIRouter(tags=["audit"])
MOST_ENTRIES = 1000


@router.get("/audit", dependencies=[OperatorOnly], responses=answers(403))
def list_audit(
    *,
    session: ReadSession,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    run: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    actor: Annotated[str, Query(max_length=64)] = "",
    action: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = 100,
) -> AuditList:
    """List who launched, cancelled, deleted or changed what, newest first; needs the operator's token."""
    return audit_log(session, before=before, run_id=run, actor=actor, action=action, limit=limit)
