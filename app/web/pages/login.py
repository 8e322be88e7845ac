"""`/login` and `/logout`: exchange a token for a signed session cookie, by form or program."""

from typing import Annotated, Final
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from app.web.http.problems import Problem, wants_html
from app.web.security.access import Access
from app.web.security.guesses import Guesses
from app.web.security.sessions import Sessions
from app.web.views import rendering

router = APIRouter(include_in_schema=False)
WRONG: Final = "the token is neither the operator's nor the viewer's"


@router.get("/login", name="login_page")
def show(request: Request, next_: Annotated[str, Query(alias="next", max_length=500)] = "") -> Response:
    """Show the form; without a token set there is nothing to sign in to."""
    needed = request.app.state.settings.token is not None
    return rendering.page(request, "pages/login/show.html", nav="login", needed=needed, next=next_, problem="")


@router.post("/login")
async def log_in(request: Request) -> Response:
    """Exchange a token (form field `token`) for a session, then go to the page `next`."""
    state = request.app.state
    access: Access = state.access
    sessions: Sessions = state.sessions
    guesses: Guesses = state.guesses
    guesses.check(request)
    token, page = await _fields(request)
    role = access.role_of_token(token.encode())
    response = RedirectResponse(_inside(request, page), 303) if wants_html(request) else Response(status_code=204)
    if role is not None:
        await run_in_threadpool(sessions.give, request, response, role)
    elif access.protected:
        guesses.count(request)
        if wants_html(request):
            return rendering.page(
                request, "pages/login/show.html", 401, nav="login", needed=True, next=page, problem=WRONG
            )
        raise Problem(401, "unauthorised", WRONG)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """End the session: no copy of its cookie is accepted any more."""
    prefix = str(request.scope.get("root_path") or "")
    response = RedirectResponse(f"{prefix}/login", 303) if wants_html(request) else Response(status_code=204)
    sessions: Sessions = request.app.state.sessions
    await run_in_threadpool(sessions.end, request, response)
    return response


async def _fields(request: Request) -> tuple[str, str]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "send the field token as application/x-www-form-urlencoded")
    try:
        form = parse_qs((await request.body()).decode(), max_num_fields=10)
    except ValueError:
        raise Problem(422, "invalid", "the form is not readable") from None
    return form.get("token", [""])[0], form.get("next", [""])[0]


def _inside(request: Request, page: str) -> str:
    """Return `page` if it is a path of this service, else the first page."""
    home = f"{request.scope.get('root_path') or ''}/"
    parts = urlsplit(page) if page.isascii() and page.isprintable() and "\\" not in page else None
    own = parts is not None and not parts.scheme and not parts.netloc and page.startswith(home)
    return page if own and not page.startswith("//") else home
