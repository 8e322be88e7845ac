"""HEAD: the answer of GET without its body, which is not generated if that is expensive."""

from typing import Final

from fastapi import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENDLESS: Final = ("/stream", "/live")
ASKED: Final = "ddp_audit.headers_alone"
"""Key of a scope whose request was HEAD."""


class HeadAsGet:
    """ASGI middleware that answers HEAD for every GET route except streams, which would never end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD request on as GET, and stop the answer before its body."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(ENDLESS):
            await self._app(scope, receive, send)
            return

        async def bodiless(message: Message) -> None:
            if message["type"] != "http.response.body":
                await send(message)
                return
            await send({"type": "http.response.body", "body": b""})
            if message.get("more_body", False):
                raise _Enough

        try:
            await self._app({**scope, "method": "GET", ASKED: True}, receive, bodiless)
        except _Enough:
            return


class _Enough(Exception):
    """The rest of an answer is not wanted."""


def headers_alone(request: Request) -> bool:
    """Return whether the body of the answer is discarded."""
    return bool(request.scope.get(ASKED, False))


def without_body(response: Response) -> Response:
    """Return the status and headers of `response`; its body is neither generated nor read."""
    alone = StreamingResponse(iter(()), response.status_code)
    alone.raw_headers = response.raw_headers
    return alone


def json_headers() -> Response:
    """Return the headers of a JSON answer whose length is unknown before it is generated."""
    return StreamingResponse(iter(()), media_type="application/json")
