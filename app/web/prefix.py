"""The path prefix a reverse proxy puts before the service."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Prefixed:
    """ASGI middleware that makes routes and links know the prefix, whether the proxy strips it or not."""

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app, self._prefix = app, prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its `root_path` set."""
        await self._app({**scope, "root_path": self._prefix}, receive, send)
