"""The gate before every route: checks host, origin, role and body size, and adds security headers."""

from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import structlog
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.settings import Settings
from app.web.http.problems import answer, problem_of, route_path, wants_html
from app.web.security import bodies
from app.web.security.access import Access
from app.web.security.hosts import check_host, check_origin

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline scripts, no inline styles: no text from a run can become code."""
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}

log = structlog.get_logger(__name__)


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, settings: Settings, access: Access) -> None:
        self._app, self._settings, self._access = app, settings, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit, refuse or answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = bodies.BoundedBody(receive, bodies.limit_of(route_path(scope), self._settings))
        answer_out = GuardedAnswer(send, body)
        request = Request(scope, receive)
        try:
            await self._admit(request)
            body.check_announced(request.headers)
            await self._app(scope, body.receive, answer_out.send)
        except Exception as error:
            if answer_out.started:
                raise
            await self._refuse(request, error, answer_out)

    async def _admit(self, request: Request) -> None:
        check_host(request.headers, self._settings.hosts)
        check_origin(request.method, request.headers)
        waits = self._access.asks_database(request)
        role = await run_in_threadpool(self._access.admit, request) if waits else self._access.admit(request)
        request.state.signed_in = self._access.protected and role is not None
        request.state.role = role or self._access.unknown
        request.state.actor = str(request.state.role) if request.state.signed_in else "user"

    async def _refuse(self, request: Request, error: Exception, answer_out: "GuardedAnswer") -> None:
        problem = problem_of(error)
        if problem.status == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed", action="request-failed", path=request.url.path, exc_info=error)
        if problem.status == HTTPStatus.UNAUTHORIZED and wants_html(request) and request.method == "GET":
            prefix, query = str(request.scope.get("root_path") or ""), request.url.query
            page = f"{prefix}{route_path(request.scope)}" + (f"?{query}" if query else "")
            response: Response = RedirectResponse(f"{prefix}/login?{urlencode({'next': page})}", HTTPStatus.SEE_OTHER)
        else:
            response = answer(request, problem)
        await response(request.scope, request.receive, answer_out.send)


class GuardedAnswer:
    """Sends the answer with security headers, and lets a client whose body was refused read the reason."""

    def __init__(self, send: Send, body: bodies.BoundedBody) -> None:
        self._send, self._body = send, body
        self.started = False

    async def send(self, message: Message) -> None:
        """Send one message of the answer."""
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            if self._body.refused:
                headers["Connection"] = "close"
        if message["type"] == "http.response.body" and self._body.refused and not message.get("more_body"):
            # The whole answer first, then the rest of the body is discarded: the client need not finish a large upload
            # first.
            await self._send({**message, "more_body": True})
            await self._body.drain()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)
