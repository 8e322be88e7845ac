"""Other threads and processes: waiting for them with a clear failure, and concurrent work in a thread."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE = 60.0
"""Seconds after which an expected event counts as missing; not a measurement of its duration."""
AGAIN_SECONDS = 0.02


def until(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Return the first true value of `condition`. Fails, naming `what`, if there is none within `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(AGAIN_SECONDS)
    return found


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Repeat `work` in another thread."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
