"""Rendering of pages and fragments: one Jinja2 environment, and links that work behind a path prefix."""

import hashlib
from functools import cache, partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app import formats
from app.clock import now
from app.places import STATIC, TEMPLATES
from app.runs.exports.tables import parquet_available
from app.runs.results.bounds import bound, demand, distance, measured, share, writer
from app.runs.tags import text_from_tags
from app.web.charts.lines import script_data
from app.web.http.problems import Problem
from app.web.views.markdown import audit, summary_tables

OPERATOR: Final = "operator"
FORMATS: Final = (
    *("number", "percent", "times", "size", "utc", "duration", "seconds"),
    *("words", "sentence", "many", "who", "exact", "parameter"),
)
"""Functions of `formats` that templates use as filters."""
_PATHS: Final[WeakKeyDictionary[FastAPI, dict[str, str]]] = WeakKeyDictionary()
"""Routes without parameters, looked up once: a page links to a dozen, and each lookup takes half a millisecond."""


@cache
def environment() -> Environment:
    """Return the environment; every value that does not come from a template is escaped."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in FORMATS:
        made.filters[name] = getattr(formats, name)
    made.filters["tag_text"] = text_from_tags
    made.filters |= {
        "script_data": script_data,
        "bound": bound,
        "demand": demand,
        "measured": measured,
        "share": share,
        "distance": distance,
        "summary_tables": summary_tables,
        "audit": audit,
    }
    made.globals["telling_apart"] = formats.telling_apart
    made.globals["writer"] = writer
    made.globals["parquet_available"] = parquet_available
    made.globals["now"] = now
    return made


def prefix(request: Request) -> str:
    """Return the path prefix added by a reverse proxy, without a trailing slash."""
    return str(request.scope.get("root_path") or "").rstrip("/")


def path(request: Request, route: str, **params: Any) -> str:
    """Return the path of a named route below the prefix: no host, so that it works behind any proxy."""
    if params:
        return f"{prefix(request)}{request.app.url_path_for(route, **params)}"
    known = _PATHS.setdefault(request.app, {})
    if route not in known:
        known[route] = str(request.app.url_path_for(route))
    return f"{prefix(request)}{known[route]}"


def api(request: Request, suffix: str) -> str:
    """Return a path of the REST API below the prefix."""
    return f"{prefix(request)}/api/v1{suffix}"


def static(request: Request, name: str) -> str:
    """Return the path of a static file with its digest, so that a changed file has a new URL."""
    return f"{prefix(request)}/static/{name}?v={_digest(name)}"


@cache
def _digest(name: str) -> str:
    try:
        return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]
    except FileNotFoundError:  # front-end files not installed yet: the page still works without them
        return "0"


def role(request: Request) -> str:
    """Return the role: `operator` or `viewer`; without tokens every client is the operator."""
    return str(getattr(request.state, "role", None) or OPERATOR)


def actor(request: Request) -> str:
    """Return the actor recorded for an action of this request."""
    return str(getattr(request.state, "actor", None) or "page")


def _context(request: Request) -> dict[str, Any]:
    return {
        "path": partial(path, request),
        "api": partial(api, request),
        "static": partial(static, request),
        "role": role(request),
        "can_write": role(request) == OPERATOR,
        "signed_in": bool(getattr(request.state, "signed_in", False)),
        "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "protected": request.app.state.access.protected,
        "webhook": request.app.state.settings.webhook_url is not None,
        "nav": "",
    }


def fragment(request: Request, template: str, **context: Any) -> Markup:
    """Return a rendered template; it is already escaped and may be embedded in another one."""
    return Markup(environment().get_template(template).render(_context(request) | context))  # noqa: S704  # escaped


def page(request: Request, template: str, status: int = 200, **context: Any) -> HTMLResponse:
    """Return a rendered template as a response that is never cached, because pages show live state."""
    return HTMLResponse(fragment(request, template, **context), status, {"Cache-Control": "no-store"})


def problem_page(request: Request, problem: Problem) -> HTMLResponse:
    """Return `problem` as a page with its status code; 401 offers a link to sign in."""
    back = request.url.path if request.method == "GET" else ""
    return page(request, "pages/errors/show.html", problem.status, problem=problem, back=back)


def see(request: Request, route: str, **params: Any) -> RedirectResponse:
    """Answer a form with a redirect to a page."""
    return RedirectResponse(path(request, route, **params), status_code=303)


def by_htmx(request: Request) -> bool:
    """Return whether a script of the page sent the request, which expects a fragment."""
    return request.headers.get("hx-request") == "true"
