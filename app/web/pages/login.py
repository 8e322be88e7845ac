"""`/login`: the form to sign in with a token."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.web.views import rendering

router = APIRouter(include_in_schema=False)


@router.get("/login", name="login_page")
def show(request: Request, next_: Annotated[str, Query(alias="next", max_length=500)] = "") -> Response:
    """Show the form; without a token set there is nothing to sign in to."""
    needed = request.app.state.settings.token is not None
    return rendering.page(request, "pages/login/show.html", nav="login", needed=needed, next=next_, problem="")
