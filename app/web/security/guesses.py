"""A limit on wrong tokens at the login."""

import math
import time
from typing import Final

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter

from app.web.http.problems import Problem

GUESSES: Final = RateLimitItemPerMinute(10)
"""Wrong tokens one address may try."""


class Guesses:
    """Counts wrong tokens per client address."""

    def __init__(self) -> None:
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def check(self, client: str) -> None:
        """Raise Problem 429 when this address has guessed too often."""
        if self._limiter.test(GUESSES, client):
            return
        opens_at = self._limiter.get_window_stats(GUESSES, client).reset_time
        seconds = max(1, math.ceil(opens_at - time.time()))
        detail = f"{GUESSES.amount} wrong tokens within a minute; try again in {seconds} s"
        raise Problem(429, "too_many_requests", detail, headers={"Retry-After": str(seconds)})

    def count(self, client: str) -> None:
        """Count a wrong token."""
        self._limiter.hit(GUESSES, client)
