"""`/deliveries`: webhook deliveries with every attempt, and sending one again."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import Field

from app.db import read_session
from app.sharing.deliveries import STATUSES, delivery_log, redeliver
from app.web.forms.entries import EntriesQuery
from app.web.views import rendering

router = APIRouter(include_in_schema=False)


class DeliveriesQuery(EntriesQuery):
    """Filters of the delivery log."""

    status: str = Field("", max_length=16)


@router.get("/deliveries", name="deliveries_page")
def show(request: Request, query: Annotated[DeliveriesQuery, Query()]) -> Response:
    """Show one page of deliveries, newest first."""
    with read_session(request.app.state.engine) as session:
        found = delivery_log(session, run_id=query.run_id(), status=query.status, before=query.before)
    older = found.next_before
    return rendering.page(
        request,
        "pages/deliveries/show.html",
        nav="deliveries",
        deliveries=found.items,
        query=query,
        statuses=STATUSES,
        older=f"?{query.address(older)}" if older else "",
        newest=f"?{query.address(None)}" if query.before else "",
    )


@router.post("/deliveries/{delivery_id:int}/redeliver", name="delivery_again")
def again(request: Request, delivery_id: int) -> Response:
    """Send a delivery again, then show its run's deliveries."""
    found = redeliver(request.app.state.engine, delivery_id, actor=rendering.actor(request))
    target = f"{rendering.path(request, 'deliveries_page')}?run={found.run_id}"
    return RedirectResponse(target, status_code=303)
