"""The page a person sees instead of a problem document."""

from fastapi import Request
from fastapi.responses import HTMLResponse

from app.web.http.problems import Problem
from app.web.views import rendering


def render_problem(request: Request, problem: Problem) -> HTMLResponse:
    """Return `problem` as a page with its own status code; 401 offers the way to sign in."""
    back = request.url.path if request.method == "GET" else ""
    return rendering.page(request, "pages/errors/show.html", problem.status, problem=problem, back=back)
