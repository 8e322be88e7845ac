"""How the service stands, in one document."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.status import standing
from app.web.api.replies import AppSettings, reply
from app.web.api.schemas import StatusDocument, answers

router = APIRouter(tags=["health"])


@router.get("/status", responses=answers(model=StatusDocument))
def show_status(request: Request, settings: AppSettings) -> Response:
    """Say what keeps runs from starting, with every worker, the queue, schema versions and free disk.

    Answers 200 whether ready or not; `/readyz` is the one for load balancers.
    """
    return reply(standing(request.app.state.engine, settings))
