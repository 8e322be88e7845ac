"""The path prefix that a reverse proxy adds to the service."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Prefixed:
    """ASGI middleware that makes routes and links work with the prefix, whether the proxy strips it or not."""

    def __init__(self, app: ASGIApp, *, prefix: str) -> None:
        self._app, self._prefix = app, prefix.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its `root_path` set, and with a path that begins with it."""
        await self._app({**scope, "root_path": self._prefix, **self._whole(scope)}, receive, send)

    def _whole(self, scope: Scope) -> dict[str, str | bytes]:
        """Return the path as the browser requested it: mounted static files need the prefix."""
        path = str(scope.get("path", ""))
        if scope["type"] not in {"http", "websocket"} or path == self._prefix or path.startswith(f"{self._prefix}/"):
            return {}
        raw = scope.get("raw_path") or path.encode()
        return {"path": f"{self._prefix}{path}", "raw_path": self._prefix.encode() + raw}
