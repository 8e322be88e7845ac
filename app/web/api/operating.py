"""The service itself: its status, and the audit log for its operator."""

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request

from app.runs.auditlog import AuditList, audit_log
from app.runs.ordering import LARGEST_ID
from app.status import StatusDocument, standing
from app.web.api.answers import answers
from app.web.api.replies import AppSettings, OperatorOnly, ReadSession

router = APIRouter()
MOST_ENTRIES: Final = 1000
BEFORE: Final = "Entries with a lower number, with any filters: `next_before` of the previous page."


@router.get("/status", tags=["health"], responses=answers())
def show_status(request: Request, settings: AppSettings) -> StatusDocument:
    """Return what keeps runs from starting, with every worker, the queue, schema versions and free disk.

    Answers 200 whether ready or not; `/readyz` is for load balancers.
    """
    return standing(request.app.state.engine, settings, request.app.state.write_probe)


@router.get("/audit", tags=["audit"], dependencies=[OperatorOnly], responses=answers(403))
def list_audit(
    *,
    session: ReadSession,
    before: Annotated[int | None, Query(ge=1, le=LARGEST_ID, description=BEFORE)] = None,
    run: Annotated[int | None, Query(ge=1, le=LARGEST_ID)] = None,
    actor: Annotated[str, Query(max_length=64)] = "",
    action: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=MOST_ENTRIES)] = 100,
) -> AuditList:
    """List who launched, cancelled, deleted or changed what, newest first; requires the operator's token."""
    return audit_log(session, before=before, run_id=run, actor=actor, action=action, limit=limit)
