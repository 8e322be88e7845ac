"""Waiting for something another thread or process does: looked for again and again, given up loudly."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 60.0
"""Seconds after which something that should happen counts as not happening; no measurement of how long it takes."""
AGAIN_SECONDS = 0.02


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return the first true value of `condition`. Fails, naming `what`, when there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(AGAIN_SECONDS)
    return found
