"""How the service stands, in one document."""

from fastapi import APIRouter, Request

from app.status import StatusDocument, standing
from app.web.api.answers import answers
from app.web.api.replies import AppSettings

router = APIRouter(tags=["health"])


@router.get("/status", responses=answers())
def show_status(request: Request, settings: AppSettings) -> StatusDocument:
    """Say what keeps runs from starting, with every worker, the queue, schema versions and free disk.

    Answers 200 whether ready or not; `/readyz` is the one for load balancers.
    """
    return standing(request.app.state.engine, settings)
