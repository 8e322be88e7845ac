"""A limit on wrong tokens: at the login, and in the header `Authorization`."""

import math
import time
from typing import Final

import structlog
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.requests import Request

from app.web.http.problems import Problem

GUESSES: Final = RateLimitItemPerMinute(10)
"""Maximum number of wrong tokens per address."""

log = structlog.get_logger(__name__)


class Guesses:
    """Counts wrong tokens per client address."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def check(self, request: Request) -> None:
        """Raise Problem 429 if the client's address has sent too many wrong tokens."""
        client = _address(request)
        if self._limiter.test(GUESSES, client):
            return
        opens_at = self._limiter.get_window_stats(GUESSES, client).reset_time
        seconds = max(1, math.ceil(opens_at - time.time()))
        detail = f"{GUESSES.amount} wrong tokens within a minute; try again in {seconds} s"
        raise Problem(429, "too_many_requests", detail, headers={"Retry-After": str(seconds)})

    def count(self, request: Request) -> None:
        """Count a wrong token; an address is logged once, when it reaches the limit."""
        client = _address(request)
        self._limiter.hit(GUESSES, client)
        if not self._limiter.test(GUESSES, client):
            log.warning("wrong tokens", action="wrong-tokens", client=client, within_a_minute=GUESSES.amount)

    def refuse(self, request: Request) -> None:
        """Count a wrong token, or raise Problem 429 if there were already too many."""
        self.check(request)
        self.count(request)


def _address(request: Request) -> str:
    return request.client.host if request.client else ""
