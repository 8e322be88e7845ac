"""Limits on request bodies: refused by their announced length, or at the first byte over the limit."""

import asyncio
from contextlib import suppress
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

from app.settings import Settings
from app.web.http.problems import BASE, Problem
from app.web.security.access import is_predict

JSON_BYTES: Final = 1024 * 1024
FORM_BYTES: Final = 1024 * 1024
"""What a multipart form may add to the upload it carries."""
ARCHIVE_BYTES: Final = 256 * 1024 * 1024
"""Of the records of a traced program."""
DRAIN_BYTES: Final = 64 * 1024 * 1024
DRAIN_SECONDS: Final = 2.0
LONGEST_LENGTH: Final = 18
"""Maximum number of digits of a Content-Length."""


def limit_of(path: str, settings: Settings) -> int:
    """Return the size limit in bytes of a body sent to `path`."""
    if path == f"{BASE}/traces":
        return ARCHIVE_BYTES
    if path == "/classify" or is_predict(path):
        return settings.max_upload_bytes + FORM_BYTES
    return JSON_BYTES


class TooLarge(HTTPException):
    """The body is over its limit; an HTTPException, because the framework turns other exceptions into a 400."""

    def __init__(self, detail: str) -> None:
        super().__init__(413, detail)


class BoundedBody:
    """The body of one request, read up to its limit."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._read = 0
        self._complete = False
        self.refused = False
        """Whether the body is over its limit."""

    def check_announced(self, headers: Headers) -> None:
        """Raise TooLarge if the announced length is over the limit, Problem 400 if it is not a number."""
        announced = headers.get("content-length")
        if announced is None:
            return
        if not (announced.isascii() and announced.isdigit()):
            raise Problem(400, "bad_request", f"Content-Length {announced[:40]!r} is not a number")
        if len(announced) > LONGEST_LENGTH or int(announced) > self._limit:
            self.refused = True
            raise TooLarge(f"the body has {announced[:40]} bytes by its Content-Length, the limit is {self._limit}")

    async def receive(self) -> Message:
        """Return the next message. Raises TooLarge at the first byte over the limit."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._read > self._limit:
                self.refused = True
                raise TooLarge(f"the body is larger than the limit of {self._limit} bytes")
        return message

    async def drain(self) -> None:
        """Discard what the client still sends, within limits.

        Closing a socket with unread bytes makes the kernel reset it, and the client may lose the answer it was sent.
        """
        thrown_away = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._complete and thrown_away < DRAIN_BYTES:
                    message = await self._receive()
                    thrown_away += len(message.get("body", b""))
                    self._complete = message["type"] != "http.request" or not message.get("more_body", False)
