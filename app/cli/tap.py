"""Streams the body of an in-process answer piece by piece; the usual transport would collect it whole."""

from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Tap:
    """Wraps an application and passes the body of a successful answer to `write`; any other answer passes through."""

    def __init__(self, app: ASGIApp, write: Callable[[bytes], Any]) -> None:
        self._app = app
        self._write = write
        self._good = False
        self._whole = False
        self._failure: OSError | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as the application does."""

        async def tapped(message: Message) -> None:
            await send(self._taken(message))

        async def heard() -> Message:
            # The application learns that the rest is not wanted, as with a closed connection.
            return {"type": "http.disconnect"} if self._failure is not None else await receive()

        await self._app(scope, heard, tapped)

    def _taken(self, message: Message) -> Message:
        if message["type"] == "http.response.start":
            self._good = 200 <= message["status"] < 300
        elif self._good and message["type"] == "http.response.body":
            self._whole = not message.get("more_body", False)
            try:
                if self._failure is None:
                    self._write(message.get("body", b""))
            except OSError as error:  # raised by `finish`: raised here it would pass through the application
                self._failure = error
            return {**message, "body": b""}
        return message

    def finish(self) -> None:
        """Raise what `write` raised. Raises EOFError if a successful answer was cut short."""
        if self._failure is not None:
            raise self._failure
        if self._good and not self._whole:
            raise EOFError("the answer was cut short")
