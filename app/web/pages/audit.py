"""`/audit`: who launched, cancelled, deleted or changed what, for the operator alone."""

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from app.db import read_session
from app.runs.audit import audit_log
from app.runs.ordering import LARGEST_ID
from app.web.api.replies import OperatorOnly
from app.web.pages import rendering

router = APIRouter(include_in_schema=False)


class AuditQuery(BaseModel):
    """Filters of the audit log, as the address carries them; empty means all."""

    run: str = Field("", max_length=19)
    action: str = Field("", max_length=64)
    before: int | None = Field(None, ge=1, le=LARGEST_ID)

    def address(self, before: int | None) -> str:
        """Return the query string of another page of the same entries."""
        values = {"run": self.run, "action": self.action, "before": before or ""}
        return urlencode({name: value for name, value in values.items() if value})

    def run_id(self) -> int | None:
        """Return the run asked for; what is no number means no run, and finds nothing."""
        words = self.run.strip().removeprefix("#")
        if not words:
            return None
        return int(words) if words.isascii() and words.isdigit() and int(words) <= LARGEST_ID else 0


@router.get("/audit", name="audit_page", dependencies=[OperatorOnly])
def show(request: Request, query: Annotated[AuditQuery, Query()]) -> Response:
    """Show one page of entries, newest first."""
    with read_session(request.app.state.engine) as session:
        found = audit_log(session, before=query.before, run_id=query.run_id(), action=query.action)
    older = found["next_before"]
    return rendering.page(
        request,
        "pages/audit/show.html",
        nav="audit",
        entries=found["items"],
        query=query,
        actions=("submit", "cancel", "retry", "edit", "delete", "redeliver", "remove_orphans"),
        older=f"?{query.address(older)}" if older else "",
        newest=f"?{query.address(None)}" if query.before else "",
    )
