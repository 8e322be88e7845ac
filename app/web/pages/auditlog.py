"""`/audit`: who launched, cancelled, deleted or changed what, for the operator alone."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from app.db import read_session
from app.runs.auditlog import audit_log
from app.web.api.replies import OperatorOnly
from app.web.forms.entries import EntriesQuery
from app.web.views import rendering

router = APIRouter(include_in_schema=False)


class AuditQuery(EntriesQuery):
    """Filters of the audit log."""

    action: str = Field("", max_length=64)


@router.get("/audit", name="audit_page", dependencies=[OperatorOnly])
def show(request: Request, query: Annotated[AuditQuery, Query()]) -> Response:
    """Show one page of entries, newest first."""
    with read_session(request.app.state.engine) as session:
        found = audit_log(session, before=query.before, run_id=query.run_id(), action=query.action)
    older = found.next_before
    return rendering.page(
        request,
        "pages/audit/show.html",
        nav="audit",
        entries=found.items,
        query=query,
        actions=("submit", "cancel", "retry", "edit", "delete", "redeliver", "remove_orphans"),
        older=f"?{query.address(older)}" if older else "",
        newest=f"?{query.address(None)}" if query.before else "",
    )
