"""HEAD: the answer of GET without its body."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENDLESS: Final = ("/stream", "/live")


class HeadAsGet:
    """ASGI middleware that answers HEAD where GET is answered, streams left out: they would never end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a HEAD request on as GET and drop the body of the answer."""
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(ENDLESS):
            await self._app(scope, receive, send)
            return

        async def bodiless(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, bodiless)
