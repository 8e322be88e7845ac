"""One log line per request, and a request number on every line logged during it."""

import re
import secrets
import time
from typing import Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.http.problems import route_path

HEADER: Final = "X-Request-ID"
ACCEPTABLE: Final = re.compile(r"^[A-Za-z0-9._-]{1,64}$")
RUN: Final = re.compile(r"^(?:/api/v1)?/runs/([0-9]{1,19})(?:/|$)")
QUIET: Final = ("/static/", "/healthz", "/readyz", "/metrics", "/favicon.ico")
"""Requested constantly by browsers and monitors; logged only if refused."""

log = structlog.get_logger(__name__)


class RequestLog:
    """Outermost ASGI middleware, so that refusals are logged too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request with its number bound to the log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = request_number(Headers(scope=scope))
        path = route_path(scope)
        run = RUN.match(path)
        bound = {"request_id": number, **({"run_id": int(run[1])} if run else {})}
        started = time.perf_counter()
        status = 0

        async def send_numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = number
            await send(message)

        with structlog.contextvars.bound_contextvars(**bound):
            try:
                await self._app(scope, receive, send_numbered)
            finally:
                if status >= 400 or not path.startswith(QUIET):
                    log.info(
                        "request",
                        action="request",
                        method=scope["method"],
                        path=path,  # without the query, which may contain private data
                        status=status or None,
                        seconds=round(time.perf_counter() - started, 4),
                        client=(scope.get("client") or ("",))[0],
                    )


def request_number(headers: Headers) -> str:
    """Return the request number from a proxy, or a new one."""
    given = headers.get(HEADER, "")
    return given if ACCEPTABLE.match(given) else secrets.token_hex(8)
